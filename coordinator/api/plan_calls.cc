#include "coordinator/api/plan_calls.h"

#include <utility>

#include "proto/grpc_status.h"

namespace weft::coordinator {

PlanCall* PlanCall::Start(coordinator::Service& service, Answer finished, const Begin& begin) {
  auto* call = new PlanCall(service);
  const std::shared_ptr<Asked> asked = call->asked_;
  std::shared_ptr<PlanTicket> ticket =
      begin([call, finished = std::move(finished)](const Status& status) {
        finished(status);
        call->Finish(ToGrpcStatus(status));
      });
  bool cancelled = false;
  {
    const std::lock_guard lock(asked->mutex);
    asked->ticket = ticket;
    cancelled = asked->cancelled;
  }
  if (cancelled) service.CancelPlanning(ticket);
  return call;
}

void PlanCall::OnCancel() {
  std::shared_ptr<PlanTicket> ticket;
  {
    const std::lock_guard lock(asked_->mutex);
    asked_->cancelled = true;
    ticket = asked_->ticket;
  }
  service_.CancelPlanning(ticket);
}

}  // namespace weft::coordinator
