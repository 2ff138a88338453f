#pragma once

#include <functional>
#include <memory>

#include "coordinator/service/service.h"
#include "weft/v1/coordinator.grpc.pb.h"

namespace weft::coordinator {

/// A call that waits for a plan without a thread of its own. Planning ends when the client goes.
class PlanCall : public grpc::ServerUnaryReactor {
 public:
  /// Answers with what `begin` finds: it is given what to call with the answer's status, once, and
  /// returns what it asked of `service`. `finished` receives the status, too. Deletes itself.
  using Answer = std::function<void(const Status&)>;
  using Begin = std::function<std::shared_ptr<PlanTicket>(Answer)>;
  static PlanCall* Start(coordinator::Service& service, Answer finished, const Begin& begin);

  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  /// What was asked for; the call may be over before that is known.
  struct Asked {
    std::mutex mutex;
    std::shared_ptr<PlanTicket> ticket;
    bool cancelled = false;
  };
  explicit PlanCall(coordinator::Service& service) : service_(service) {}

  coordinator::Service& service_;
  const std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
};

}  // namespace weft::coordinator
