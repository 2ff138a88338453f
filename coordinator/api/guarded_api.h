#pragma once

#include <string>

#include "coordinator/api/admission.h"
#include "coordinator/api/audited_calls.h"
#include "coordinator/api/coordinator_api.h"

namespace weft::coordinator {

/// weft.v1.Coordinator as callers reach it: every call passes the table of rights and the limits
/// before CoordinatorApi gets it, and those that change something are recorded. Refusals are, too.
class GuardedApi : public v1::Coordinator::CallbackService {
 public:
  GuardedApi(CoordinatorApi& api, AuditedCalls& calls, Admission& admission,
             coordinator::Service& service, Metrics& metrics, const Clock& clock)
      : api_(api),
        calls_(calls),
        admission_(admission),
        service_(service),
        metrics_(metrics),
        clock_(clock) {}

#define WEFT_GUARDED_CALL(Method, Request, Response)                                              \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context,                          \
                                   const v1::Request* request, v1::Response* response) override { \
    return Guard(#Method, context, *request, [&](const Caller&, const v1::Request& admitted) {    \
      return api_.Method(context, &admitted, response);                                           \
    });                                                                                           \
  }
  WEFT_GUARDED_CALL(SubmitJob, SubmitJobRequest, SubmitJobResponse)
  WEFT_GUARDED_CALL(GetJob, GetJobRequest, Job)
  WEFT_GUARDED_CALL(ListJobs, ListJobsRequest, ListJobsResponse)
  WEFT_GUARDED_CALL(CancelJob, CancelJobRequest, Job)
  WEFT_GUARDED_CALL(RetryJob, RetryJobRequest, Job)
  WEFT_GUARDED_CALL(PauseJob, PauseJobRequest, Job)
  WEFT_GUARDED_CALL(ResumeJob, ResumeJobRequest, Job)
  WEFT_GUARDED_CALL(UpdateJob, UpdateJobRequest, Job)
  WEFT_GUARDED_CALL(ExplainJob, ExplainJobRequest, ExplainJobResponse)
  WEFT_GUARDED_CALL(ListQueues, ListQueuesRequest, ListQueuesResponse)
  WEFT_GUARDED_CALL(DeleteJob, DeleteJobRequest, DeleteJobResponse)
  WEFT_GUARDED_CALL(PlanJob, PlanJobRequest, PlanReport)
  WEFT_GUARDED_CALL(ExplainPlan, ExplainPlanRequest, ExplainPlanResponse)
  WEFT_GUARDED_CALL(CalibratePlans, CalibratePlansRequest, CalibratePlansResponse)
  WEFT_GUARDED_CALL(ListWorkers, ListWorkersRequest, ListWorkersResponse)
  WEFT_GUARDED_CALL(ListEvents, ListEventsRequest, ListEventsResponse)
  WEFT_GUARDED_CALL(ForgetWorker, ForgetWorkerRequest, ForgetWorkerResponse)
  WEFT_GUARDED_CALL(SetWorkerScheduling, SetWorkerSchedulingRequest, Worker)
  WEFT_GUARDED_CALL(ListCheckpoints, ListCheckpointsRequest, ListCheckpointsResponse)
  WEFT_GUARDED_CALL(ProfileJob, ProfileJobRequest, ProfileJobResponse)
  WEFT_GUARDED_CALL(GetVersion, GetVersionRequest, GetVersionResponse)
#undef WEFT_GUARDED_CALL

  grpc::ServerWriteReactor<v1::JobUpdate>* WatchJob(grpc::CallbackServerContext* context,
                                                    const v1::WatchJobRequest* request) override;
  grpc::ServerWriteReactor<v1::LogLine>* StreamLogs(grpc::CallbackServerContext* context,
                                                    const v1::StreamLogsRequest* request) override;
  // About the guard itself.
  grpc::ServerUnaryReactor* WhoAmI(grpc::CallbackServerContext* context,
                                   const v1::WhoAmIRequest* request,
                                   v1::WhoAmIResponse* response) override;
  grpc::ServerUnaryReactor* ListAuditRecords(grpc::CallbackServerContext* context,
                                             const v1::ListAuditRecordsRequest* request,
                                             v1::ListAuditRecordsResponse* response) override;

 private:
  template <class Request, class Handle>
  grpc::ServerUnaryReactor* Guard(const char* method, grpc::CallbackServerContext* context,
                                  const Request& request, Handle handle);
  template <class Message, class Request, class Handle>
  grpc::ServerWriteReactor<Message>* GuardStream(const char* method,
                                                 grpc::CallbackServerContext* context,
                                                 const Request& request, Handle handle);
  std::shared_ptr<CallRecord> RecordOf(const Verb& verb, const CallSubject& subject,
                                       const Caller& caller) const;
  /// Counts and records a refusal, then calls `answer`.
  void Refuse(const Verb& verb, const CallSubject& subject, const Caller& caller,
              const grpc::Status& status, std::function<void()> answer);
  grpc::ServerUnaryReactor* Finish(grpc::ServerUnaryReactor* reactor, const char* method,
                                   const Status& status);

  CoordinatorApi& api_;
  AuditedCalls& calls_;
  Admission& admission_;
  coordinator::Service& service_;
  Metrics& metrics_;
  const Clock& clock_;
};

/// What a request is about.
template <class Request>
CallSubject SubjectOf(const Request& request) {
  CallSubject subject;
  if constexpr (requires {
                  request.spec();
                  request.client_request_id();
                }) {
    subject.client_request_id = request.client_request_id();
    const auto& scheduling = request.spec().scheduling();
    subject.queue = scheduling.has_queue() ? scheduling.queue() : SchedulingSpec().queue;
    subject.object = request.spec().name();
  } else if constexpr (requires { request.id(); }) {
    subject.names_job = true;
    subject.object = subject.job_id = request.id();
  } else if constexpr (requires { request.job_id(); }) {
    subject.names_job = true;
    subject.object = subject.job_id = request.job_id();
  } else if constexpr (requires { request.worker_id(); }) {
    subject.object = request.worker_id();
  }
  if constexpr (requires { request.has_queue(); }) subject.queue = request.queue();
  return subject;
}

/// Calls `handle` with the request, whose job has the full id that was admitted.
template <class Request, class Handle>
auto HandleAdmitted(const Request& request, const CallSubject& subject, Handle handle) {
  if constexpr (requires(Request copy) { copy.set_id(""); }) {
    Request admitted = request;
    admitted.set_id(subject.job_id);
    return handle(admitted);
  } else if constexpr (requires(Request copy) { copy.set_job_id(""); }) {
    Request admitted = request;
    admitted.set_job_id(subject.job_id);
    return handle(admitted);
  } else {
    return handle(request);
  }
}

template <class Request, class Handle>
grpc::ServerUnaryReactor* GuardedApi::Guard(const char* method,
                                            grpc::CallbackServerContext* context,
                                            const Request& request, Handle handle) {
  const Verb& verb = *FindVerb(method);
  CallSubject subject = SubjectOf(request);
  Caller caller;
  const grpc::Status status = admission_.Admit(*context, verb, subject, caller);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!status.ok()) {
    Refuse(verb, subject, caller, status, [reactor, status] { reactor->Finish(status); });
    return reactor;
  }
  calls_.Begin(context, reactor, verb.changes ? RecordOf(verb, subject, caller) : nullptr);
  return HandleAdmitted(request, subject,
                        [&](const Request& admitted) { return handle(caller, admitted); });
}

}  // namespace weft::coordinator
