#include "coordinator/api/audited_calls.h"

#include <utility>

#include "common/log.h"
#include "proto/grpc_status.h"

namespace weft::coordinator {

std::string NameOf(grpc::StatusCode code) {
  constexpr const char* kNames[] = {"OK",
                                    "CANCELLED",
                                    "UNKNOWN",
                                    "INVALID_ARGUMENT",
                                    "DEADLINE_EXCEEDED",
                                    "NOT_FOUND",
                                    "ALREADY_EXISTS",
                                    "PERMISSION_DENIED",
                                    "RESOURCE_EXHAUSTED",
                                    "FAILED_PRECONDITION",
                                    "ABORTED",
                                    "OUT_OF_RANGE",
                                    "UNIMPLEMENTED",
                                    "INTERNAL",
                                    "UNAVAILABLE",
                                    "DATA_LOSS",
                                    "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

void AuditedCalls::Begin(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
                         std::shared_ptr<CallRecord> call) {
  std::lock_guard lock(mutex_);
  begun_[context] = reactor;
  // A reactor may have the address of an earlier one that was never answered through here.
  if (call == nullptr) {
    calls_.erase(reactor);
  } else {
    calls_[reactor] = std::move(call);
  }
}

grpc::ServerUnaryReactor* AuditedCalls::ReactorOf(grpc::CallbackServerContext* context) {
  std::lock_guard lock(mutex_);
  const auto found = begun_.find(context);
  if (found == begun_.end()) return context->DefaultReactor();
  grpc::ServerUnaryReactor* reactor = found->second;
  begun_.erase(found);
  return reactor;
}

std::shared_ptr<CallRecord> AuditedCalls::Of(grpc::ServerUnaryReactor* reactor) {
  std::lock_guard lock(mutex_);
  const auto call = calls_.find(reactor);
  return call == calls_.end() ? nullptr : call->second;
}

void AuditedCalls::Answer(grpc::ServerUnaryReactor* reactor, const grpc::Status& status) {
  std::shared_ptr<CallRecord> call;
  {
    std::lock_guard lock(mutex_);
    const auto found = calls_.find(reactor);
    if (found != calls_.end()) call = std::move(found->second);
    if (found != calls_.end()) calls_.erase(found);
  }
  if (call == nullptr || call->stored) {
    if (call != nullptr) metrics_.Audited(call->record.method, call->record.result);
    reactor->Finish(status);
    return;
  }
  call->record.result = NameOf(status.error_code());
  Store(std::move(call), [reactor, status](const Status& stored) {
    const bool lost = status.ok() && !stored.ok();
    reactor->Finish(lost ? ToGrpcStatus(stored.WithContext("record the call in the audit log"))
                         : status);
  });
}

void AuditedCalls::Store(std::shared_ptr<CallRecord> call,
                         std::function<void(const Status&)> then) {
  metrics_.Audited(call->record.method, call->record.result);
  Transaction record;
  record.audit = std::move(call);
  store_.Commit(std::move(record), [then = std::move(then)](const Result<CommitResult>& result) {
    if (!result.ok()) {
      WEFT_LOG_ERROR << "a record of the audit log is lost: " << result.status().message();
    }
    then(result.status());
  });
}

}  // namespace weft::coordinator
