#include "coordinator/api/guarded_api.h"

#include <utility>

#include "proto/grpc_status.h"

namespace weft::coordinator {
namespace {

constexpr int32_t kDefaultRecords = 1000;
constexpr int32_t kMostRecords = 10'000;

/// A stream that ends before its first message.
template <class Message>
class RefusedStream : public grpc::ServerWriteReactor<Message> {
 public:
  void OnDone() override { delete this; }
};

v1::AuditRecord ToMessage(const AuditRecord& record) {
  v1::AuditRecord message;
  message.set_sequence(record.sequence);
  message.set_time(record.time);
  message.set_who(record.who);
  message.set_role(record.role);
  message.set_peer(record.peer);
  message.set_method(record.method);
  message.set_object(record.object);
  message.set_result(record.result);
  message.set_hash(record.hash);
  return message;
}

}  // namespace

std::shared_ptr<CallRecord> GuardedApi::RecordOf(const Verb& verb, const CallSubject& subject,
                                                 const Caller& caller) const {
  constexpr size_t kLongestObject = 200;
  auto call = std::make_shared<CallRecord>();
  AuditRecord& record = call->record;
  record.time = clock_.UnixSeconds();
  record.who = caller.person.name;
  record.role = Name(caller.person.role);
  record.peer = caller.peer;
  record.method = verb.method;
  record.object = subject.object.substr(0, kLongestObject);
  record.result = NameOf(grpc::StatusCode::OK);
  return call;
}

void GuardedApi::Refuse(const Verb& verb, const CallSubject& subject, const Caller& caller,
                        const grpc::Status& status, std::function<void()> answer) {
  const std::string method(verb.method);
  metrics_.RpcHandled("Coordinator", method, NameOf(status.error_code()));
  const bool mistake = status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
                       status.error_code() == grpc::StatusCode::NOT_FOUND;
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    metrics_.RateLimited(method);
  } else if (!mistake) {
    metrics_.AuthFailed(method, NameOf(status.error_code()));
  }
  // Looking for what does not exist is nobody's misdeed.
  if ((mistake && !verb.changes) || !admission_.Records(caller)) return answer();
  std::shared_ptr<CallRecord> call = RecordOf(verb, subject, caller);
  call->record.result = NameOf(status.error_code());
  calls_.Store(std::move(call), [answer = std::move(answer)](const Status&) { answer(); });
}

grpc::ServerUnaryReactor* GuardedApi::Finish(grpc::ServerUnaryReactor* reactor, const char* method,
                                             const Status& status) {
  metrics_.RpcHandled("Coordinator", method, std::string(StatusCodeName(status.code())));
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

template <class Message, class Request, class Handle>
grpc::ServerWriteReactor<Message>* GuardedApi::GuardStream(const char* method,
                                                           grpc::CallbackServerContext* context,
                                                           const Request& request, Handle handle) {
  const Verb& verb = *FindVerb(method);
  CallSubject subject = SubjectOf(request);
  Caller caller;
  const grpc::Status status = admission_.Admit(*context, verb, subject, caller);
  if (status.ok()) return HandleAdmitted(request, subject, handle);
  auto* stream = new RefusedStream<Message>();
  Refuse(verb, subject, caller, status, [stream, status] { stream->Finish(status); });
  return stream;
}

grpc::ServerWriteReactor<v1::JobUpdate>* GuardedApi::WatchJob(grpc::CallbackServerContext* context,
                                                              const v1::WatchJobRequest* request) {
  return GuardStream<v1::JobUpdate>(
      "WatchJob", context, *request,
      [&](const v1::WatchJobRequest& admitted) { return api_.WatchJob(context, &admitted); });
}

grpc::ServerWriteReactor<v1::LogLine>* GuardedApi::StreamLogs(
    grpc::CallbackServerContext* context, const v1::StreamLogsRequest* request) {
  return GuardStream<v1::LogLine>(
      "StreamLogs", context, *request,
      [&](const v1::StreamLogsRequest& admitted) { return api_.StreamLogs(context, &admitted); });
}

grpc::ServerUnaryReactor* GuardedApi::WhoAmI(grpc::CallbackServerContext* context,
                                             const v1::WhoAmIRequest* request,
                                             v1::WhoAmIResponse* response) {
  return Guard("WhoAmI", context, *request, [&](const Caller& caller, const auto&) {
    response->set_name(caller.person.name);
    response->set_role(std::string(Name(caller.person.role)));
    for (const std::string& queue : caller.person.queues) response->add_queues(queue);
    return Finish(calls_.ReactorOf(context), "WhoAmI", OkStatus());
  });
}

grpc::ServerUnaryReactor* GuardedApi::ListAuditRecords(grpc::CallbackServerContext* context,
                                                       const v1::ListAuditRecordsRequest* request,
                                                       v1::ListAuditRecordsResponse* response) {
  return Guard("ListAuditRecords", context, *request, [&](const Caller&, const auto&) {
    const auto list = [&]() -> Status {
      if (request->page_size() < 0 || request->page_size() > kMostRecords) {
        return InvalidError("page_size is " + std::to_string(request->page_size()) +
                            ", but must be 0 to " + std::to_string(kMostRecords));
      }
      AuditQuery query{request->after_sequence(), request->who(), request->object(),
                       request->page_size() == 0 ? kDefaultRecords : request->page_size()};
      WEFT_ASSIGN_OR_RETURN(const std::vector<AuditRecord> records,
                            service_.store().ListAudit(query));
      for (const AuditRecord& record : records) *response->add_records() = ToMessage(record);
      WEFT_ASSIGN_OR_RETURN(const bool holds, service_.store().AuditChainHolds());
      response->set_chain_holds(holds);
      return OkStatus();
    };
    return Finish(calls_.ReactorOf(context), "ListAuditRecords", list());
  });
}

}  // namespace weft::coordinator
