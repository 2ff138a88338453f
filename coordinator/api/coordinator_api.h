#pragma once

#include "coordinator/api/audited_calls.h"
#include "coordinator/service/service.h"
#include "weft/v1/coordinator.grpc.pb.h"

namespace weft::coordinator {

/// weft.v1.Coordinator: what users do. Reads, validates and answers; the Service decides. Requests
/// are those that GuardedApi admitted, with full ids of jobs, and are read before a call returns.
class CoordinatorApi : public v1::Coordinator::CallbackService {
 public:
  CoordinatorApi(coordinator::Service& service, Metrics& metrics, AuditedCalls& calls)
      : service_(service), metrics_(metrics), calls_(calls) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request, v1::Job* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* RetryJob(grpc::CallbackServerContext* context,
                                     const v1::RetryJobRequest* request,
                                     v1::Job* response) override;
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext* context,
                                     const v1::PauseJobRequest* request,
                                     v1::Job* response) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context,
                                      const v1::ResumeJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* UpdateJob(grpc::CallbackServerContext* context,
                                      const v1::UpdateJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* ExplainJob(grpc::CallbackServerContext* context,
                                       const v1::ExplainJobRequest* request,
                                       v1::ExplainJobResponse* response) override;
  grpc::ServerUnaryReactor* ListQueues(grpc::CallbackServerContext* context,
                                       const v1::ListQueuesRequest* request,
                                       v1::ListQueuesResponse* response) override;
  grpc::ServerUnaryReactor* SetWorkerScheduling(grpc::CallbackServerContext* context,
                                                const v1::SetWorkerSchedulingRequest* request,
                                                v1::Worker* response) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext* context,
                                      const v1::DeleteJobRequest* request,
                                      v1::DeleteJobResponse* response) override;
  grpc::ServerWriteReactor<v1::JobUpdate>* WatchJob(grpc::CallbackServerContext* context,
                                                    const v1::WatchJobRequest* request) override;
  grpc::ServerWriteReactor<v1::LogLine>* StreamLogs(grpc::CallbackServerContext* context,
                                                    const v1::StreamLogsRequest* request) override;
  grpc::ServerUnaryReactor* PlanJob(grpc::CallbackServerContext* context,
                                    const v1::PlanJobRequest* request,
                                    v1::PlanReport* response) override;
  grpc::ServerUnaryReactor* ExplainPlan(grpc::CallbackServerContext* context,
                                        const v1::ExplainPlanRequest* request,
                                        v1::ExplainPlanResponse* response) override;
  grpc::ServerUnaryReactor* CalibratePlans(grpc::CallbackServerContext* context,
                                           const v1::CalibratePlansRequest* request,
                                           v1::CalibratePlansResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context,
                                       const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) override;
  grpc::ServerUnaryReactor* ForgetWorker(grpc::CallbackServerContext* context,
                                         const v1::ForgetWorkerRequest* request,
                                         v1::ForgetWorkerResponse* response) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsResponse* response) override;
  grpc::ServerUnaryReactor* ProfileJob(grpc::CallbackServerContext* context,
                                       const v1::ProfileJobRequest* request,
                                       v1::ProfileJobResponse* response) override;
  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const v1::GetVersionRequest* request,
                                       v1::GetVersionResponse* response) override;

 private:
  /// Counts a call that was answered so.
  void Count(const char* method, const Status& status);
  /// Answers with the job, once the service has it.
  std::function<void(Result<JobView>)> Answer(grpc::ServerUnaryReactor* reactor, const char* method,
                                              v1::Job* response);
  /// Answers a call and counts it.
  grpc::ServerUnaryReactor* Finish(grpc::ServerUnaryReactor* reactor, const char* method,
                                   const Status& status);

  coordinator::Service& service_;
  Metrics& metrics_;
  AuditedCalls& calls_;
};

}  // namespace weft::coordinator
