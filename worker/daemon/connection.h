#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "common/status.h"
#include "weft/v1/worker.grpc.pb.h"

namespace weft::daemon {

/// One Attach stream, from dialling to its end. Send and Close are thread-safe; the callbacks come
/// on threads of gRPC, one at a time, on_closed last and exactly once.
class Connection : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  struct Events {
    std::function<void(v1::CoordinatorMessage)> on_message;
    std::function<void(Status)> on_closed;
  };

  /// Starts to dial `address` ("host:port"). What is sent before the stream stands is kept.
  static std::shared_ptr<Connection> Dial(const std::string& address, Events events);

  /// Queues a message; dropped when the stream has ended.
  void Send(v1::WorkerMessage message);

  /// Sends what is queued, then ends the stream from this side.
  void Finish();

  /// Ends the stream at once.
  void Cancel() { context_.TryCancel(); }

 private:
  explicit Connection(Events events) : events_(std::move(events)) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  Events events_;
  grpc::ClientContext context_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::shared_ptr<Connection> self_;  // until OnDone
  v1::CoordinatorMessage incoming_;

  std::mutex mutex_;
  std::deque<v1::WorkerMessage> outgoing_;
  bool writing_ = false;
  bool finishing_ = false;
  bool ended_ = false;
};

}  // namespace weft::daemon
