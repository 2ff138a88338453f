#include "coordinator/api/coordinator_api.h"

#include <charconv>

#include "common/spec/check_links.h"
#include "common/spec/check_profile.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "common/version.h"
#include "coordinator/api/convert.h"
#include "coordinator/api/job_streams.h"
#include "coordinator/api/plan_calls.h"
#include "proto/convert.h"
#include "proto/grpc_status.h"

namespace weft::coordinator {
namespace {

constexpr int32_t kDefaultPage = 100;
constexpr int32_t kMaxPage = 5000;
constexpr int64_t kDefaultCandidates = 10;
constexpr size_t kMaxWhyBytes = 1000;

Result<JobQuery> ToQuery(const v1::ListJobsRequest& request) {
  JobQuery query;
  if (request.page_size() < 0 || request.page_size() > kMaxPage) {
    return InvalidError("page_size is " + std::to_string(request.page_size()) +
                        ", but must be 0 to " + std::to_string(kMaxPage));
  }
  query.limit = request.page_size() == 0 ? kDefaultPage : request.page_size();
  query.owner = request.owner();
  const std::string& token = request.page_token();
  if (!token.empty()) {
    auto [end, error] =
        std::from_chars(token.data(), token.data() + token.size(), query.before_ordinal);
    if (error != std::errc() || end != token.data() + token.size() || query.before_ordinal < 1) {
      return InvalidError("page_token '" + token + "' is not one that this coordinator gave");
    }
  }
  for (int state : request.states()) {
    std::optional<JobState> known = FromMessage(static_cast<v1::JobState>(state));
    if (!known) return InvalidError("states holds an unknown state " + std::to_string(state));
    query.states.push_back(*known);
  }
  if (query.states.size() > static_cast<size_t>(kJobStates)) {
    return InvalidError("states names a state twice");
  }
  query.queue = request.queue();
  query.group = request.group();
  query.owner = request.owner();
  return query;
}

/// The cluster that a request to plan gives, if it gives one.
template <class Request>
Result<std::optional<ClusterProfile>> ClusterOf(const Request& request) {
  std::optional<ClusterProfile> cluster;
  if (request.has_cluster()) {
    WEFT_ASSIGN_OR_RETURN(cluster, FromProto<ClusterProfile>(request.cluster()));
    for (const WorkerProfile& machine : cluster->workers) {
      WEFT_RETURN_IF_ERROR(
          CheckProfile(machine).WithContext("cluster.workers '" + machine.worker_id + "'"));
    }
    WEFT_RETURN_IF_ERROR(CheckLinks(*cluster).WithContext("cluster"));
  }
  return cluster;
}

/// The job of a request, with a warm-up that fits where the request has none.
Result<JobSpec> ReadSpec(const v1::JobSpec& message) {
  WEFT_ASSIGN_OR_RETURN(JobSpec spec, FromProto<JobSpec>(message));
  if (!message.schedule().has_warmup_steps()) FitDefaultWarmup(spec);
  return spec;
}

}  // namespace

void CoordinatorApi::Count(const char* method, const Status& status) {
  metrics_.RpcHandled("Coordinator", method, std::string(StatusCodeName(status.code())));
}

grpc::ServerUnaryReactor* CoordinatorApi::Finish(grpc::ServerUnaryReactor* reactor,
                                                 const char* method, const Status& status) {
  Count(method, status);
  calls_.Answer(reactor, ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::SubmitJob(grpc::CallbackServerContext* context,
                                                    const v1::SubmitJobRequest* request,
                                                    v1::SubmitJobResponse* response) {
  auto* reactor = calls_.ReactorOf(context);
  Result<JobSpec> spec = ReadSpec(request->spec());
  if (!spec.ok()) return Finish(reactor, "SubmitJob", spec.status());
  service_.Submit(
      *spec, request->client_request_id(),
      [this, reactor, response](const Result<SubmitResult>& result) {
        if (result.ok()) {
          *response->mutable_job() = ToMessage(result->view);
          response->set_already_submitted(result->already_submitted);
        }
        const Status& status = result.status();
        if (status.code() == StatusCode::kConflict) {
          metrics_.RpcHandled("Coordinator", "SubmitJob", "ALREADY_EXISTS");
          calls_.Answer(reactor, {grpc::StatusCode::ALREADY_EXISTS, status.message()});
        } else {
          Finish(reactor, "SubmitJob", status);
        }
      },
      calls_.Of(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::GetJob(grpc::CallbackServerContext* context,
                                                 const v1::GetJobRequest* request,
                                                 v1::Job* response) {
  Result<JobView> view = service_.Get(request->id());
  if (view.ok()) *response = ToMessage(*view);
  return Finish(calls_.ReactorOf(context), "GetJob", view.status());
}

grpc::ServerUnaryReactor* CoordinatorApi::ListJobs(grpc::CallbackServerContext* context,
                                                   const v1::ListJobsRequest* request,
                                                   v1::ListJobsResponse* response) {
  auto* reactor = calls_.ReactorOf(context);
  Result<JobQuery> query = ToQuery(*request);
  if (!query.ok()) return Finish(reactor, "ListJobs", query.status());
  Result<JobPage> page = service_.List(*query);
  if (page.ok()) {
    for (const JobSummary& job : page->jobs) *response->add_jobs() = ToMessage(job);
    if (page->next_before_ordinal > 0) {
      response->set_next_page_token(std::to_string(page->next_before_ordinal));
    }
  }
  return Finish(reactor, "ListJobs", page.status());
}

std::function<void(Result<JobView>)> CoordinatorApi::Answer(grpc::ServerUnaryReactor* reactor,
                                                            const char* method, v1::Job* response) {
  return [this, reactor, method, response](const Result<JobView>& view) {
    if (view.ok()) *response = ToMessage(*view);
    Finish(reactor, method, view.status());
  };
}

grpc::ServerUnaryReactor* CoordinatorApi::CancelJob(grpc::CallbackServerContext* context,
                                                    const v1::CancelJobRequest* request,
                                                    v1::Job* response) {
  auto* reactor = calls_.ReactorOf(context);
  service_.Cancel(request->id(), Answer(reactor, "CancelJob", response), calls_.Of(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::RetryJob(grpc::CallbackServerContext* context,
                                                   const v1::RetryJobRequest* request,
                                                   v1::Job* response) {
  auto* reactor = calls_.ReactorOf(context);
  service_.Retry(request->id(), Answer(reactor, "RetryJob", response), calls_.Of(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::PauseJob(grpc::CallbackServerContext* context,
                                                   const v1::PauseJobRequest* request,
                                                   v1::Job* response) {
  auto* reactor = calls_.ReactorOf(context);
  service_.Pause(request->id(), Answer(reactor, "PauseJob", response), calls_.Of(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::ResumeJob(grpc::CallbackServerContext* context,
                                                    const v1::ResumeJobRequest* request,
                                                    v1::Job* response) {
  auto* reactor = calls_.ReactorOf(context);
  service_.Resume(request->id(), Answer(reactor, "ResumeJob", response), calls_.Of(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::UpdateJob(grpc::CallbackServerContext* context,
                                                    const v1::UpdateJobRequest* request,
                                                    v1::Job* response) {
  auto* reactor = calls_.ReactorOf(context);
  std::optional<std::string> queue;
  std::optional<int64_t> priority;
  if (request->has_queue()) queue = request->queue();
  if (request->has_priority()) priority = request->priority();
  if (!queue && !priority) {
    return Finish(reactor, "UpdateJob", InvalidError("neither a queue nor a priority is given"));
  }
  service_.Update(request->id(), queue, priority, Answer(reactor, "UpdateJob", response),
                  calls_.Of(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::ExplainJob(grpc::CallbackServerContext* context,
                                                     const v1::ExplainJobRequest* request,
                                                     v1::ExplainJobResponse* response) {
  auto* reactor = calls_.ReactorOf(context);
  service_.Explain(request->id(),
                   [this, reactor, response](const Result<JobExplanation>& explained) {
                     if (explained.ok()) *response = ToMessage(*explained);
                     Finish(reactor, "ExplainJob", explained.status());
                   });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::ListQueues(grpc::CallbackServerContext* context,
                                                     const v1::ListQueuesRequest*,
                                                     v1::ListQueuesResponse* response) {
  auto* reactor = calls_.ReactorOf(context);
  service_.Queues([this, reactor, response](const std::vector<QueueUse>& queues) {
    for (const QueueUse& queue : queues) *response->add_queues() = ToMessage(queue);
    Finish(reactor, "ListQueues", OkStatus());
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::SetWorkerScheduling(
    grpc::CallbackServerContext* context, const v1::SetWorkerSchedulingRequest* request,
    v1::Worker* response) {
  auto* reactor = calls_.ReactorOf(context);
  const std::optional<WorkerScheduling> scheduling = FromMessage(request->scheduling());
  if (!scheduling || request->why().size() > kMaxWhyBytes) {
    return Finish(reactor, "SetWorkerScheduling",
                  InvalidError(scheduling ? "why is longer than 1000 bytes"
                                          : "scheduling is not SCHEDULABLE, CORDONED, DRAINING or "
                                            "QUARANTINED"));
  }
  service_.SetWorkerScheduling(
      request->worker_id(), *scheduling, request->why(),
      [this, reactor, response](const Result<WorkerView>& view) {
        if (view.ok()) *response = ToMessage(*view);
        Finish(reactor, "SetWorkerScheduling", view.status());
      },
      calls_.Of(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::DeleteJob(grpc::CallbackServerContext* context,
                                                    const v1::DeleteJobRequest* request,
                                                    v1::DeleteJobResponse* response) {
  auto* reactor = calls_.ReactorOf(context);
  service_.Delete(
      request->id(), request->delete_run_dir(),
      [this, reactor, response](const Result<DeletedJob>& deleted) {
        if (deleted.ok()) {
          response->set_id(deleted->id);
          response->set_kept_run_dir(deleted->kept_run_dir);
        }
        Finish(reactor, "DeleteJob", deleted.status());
      },
      calls_.Of(reactor));
  return reactor;
}

grpc::ServerWriteReactor<v1::JobUpdate>* CoordinatorApi::WatchJob(
    grpc::CallbackServerContext*, const v1::WatchJobRequest* request) {
  return NewJobWatch(service_, metrics_, request->id());
}

grpc::ServerWriteReactor<v1::LogLine>* CoordinatorApi::StreamLogs(
    grpc::CallbackServerContext*, const v1::StreamLogsRequest* request) {
  return NewLogStream(service_, metrics_, *request);
}

grpc::ServerUnaryReactor* CoordinatorApi::PlanJob(grpc::CallbackServerContext* context,
                                                  const v1::PlanJobRequest* request,
                                                  v1::PlanReport* response) {
  const auto refuse = [&](const Status& status) {
    return Finish(calls_.ReactorOf(context), "PlanJob", status);
  };
  Result<JobSpec> spec = ReadSpec(request->spec());
  if (!spec.ok()) return refuse(spec.status());
  Result<std::optional<ClusterProfile>> cluster = ClusterOf(*request);
  if (!cluster.ok()) return refuse(cluster.status());
  int64_t top = request->top() > 0 ? request->top() : kDefaultCandidates;
  return PlanCall::Start(
      service_, [this](const Status& status) { Count("PlanJob", status); },
      [&](const PlanCall::Answer& answer) {
        return service_.PlanFor(*spec, *cluster, top,
                                [answer, response](const Result<PlanReport>& report) {
                                  if (report.ok()) *response = ToProto<v1::PlanReport>(*report);
                                  answer(report.status());
                                });
      });
}

grpc::ServerUnaryReactor* CoordinatorApi::ExplainPlan(grpc::CallbackServerContext* context,
                                                      const v1::ExplainPlanRequest* request,
                                                      v1::ExplainPlanResponse* response) {
  const auto refuse = [&](const Status& status) {
    return Finish(calls_.ReactorOf(context), "ExplainPlan", status);
  };
  Result<JobSpec> spec = ReadSpec(request->spec());
  if (!spec.ok()) return refuse(spec.status());
  Result<std::optional<ClusterProfile>> cluster = ClusterOf(*request);
  if (!cluster.ok()) return refuse(cluster.status());
  Result<PlanQuery> query = FromProto<PlanQuery>(request->query());
  if (!query.ok()) return refuse(query.status());
  return PlanCall::Start(
      service_, [this](const Status& status) { Count("ExplainPlan", status); },
      [&](const PlanCall::Answer& answer) {
        const auto reply = [answer, response](const auto& report) {
          if (report.ok()) {
            response->set_report_json(
                ToJson(*report).dump(-1, ' ', false, Json::error_handler_t::replace));
          }
          answer(report.status());
        };
        const bool one = query->phase > 0 || CheckOnePhase(*spec).ok();
        return one ? service_.ExplainFor(*spec, *cluster, *query, reply)
                   : service_.PlanPhasesFor(*spec, *cluster, *query, reply);
      });
}

grpc::ServerUnaryReactor* CoordinatorApi::CalibratePlans(grpc::CallbackServerContext* context,
                                                         const v1::CalibratePlansRequest* request,
                                                         v1::CalibratePlansResponse* response) {
  auto* reactor = calls_.ReactorOf(context);
  const Result<planner::CalibrationReport> report =
      service_.CalibratePlans(request->dry_run(), request->reset(), calls_.Of(reactor));
  if (report.ok()) {
    response->set_report_json(ToJson(*report).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return Finish(reactor, "CalibratePlans", report.status());
}

grpc::ServerUnaryReactor* CoordinatorApi::ListWorkers(grpc::CallbackServerContext* context,
                                                      const v1::ListWorkersRequest*,
                                                      v1::ListWorkersResponse* response) {
  for (const WorkerView& view : service_.Workers()) *response->add_workers() = ToMessage(view);
  return Finish(calls_.ReactorOf(context), "ListWorkers", OkStatus());
}

grpc::ServerUnaryReactor* CoordinatorApi::ListEvents(grpc::CallbackServerContext* context,
                                                     const v1::ListEventsRequest* request,
                                                     v1::ListEventsResponse* response) {
  Result<std::vector<EventRecord>> events = service_.Events(request->job_id());
  if (events.ok()) {
    for (const EventRecord& event : *events) *response->add_events() = ToMessage(event);
  }
  return Finish(calls_.ReactorOf(context), "ListEvents", events.status());
}

grpc::ServerUnaryReactor* CoordinatorApi::ForgetWorker(grpc::CallbackServerContext* context,
                                                       const v1::ForgetWorkerRequest* request,
                                                       v1::ForgetWorkerResponse*) {
  auto* reactor = calls_.ReactorOf(context);
  service_.ForgetWorker(
      request->worker_id(),
      [this, reactor](const Status& status) { Finish(reactor, "ForgetWorker", status); },
      calls_.Of(reactor));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::ListCheckpoints(grpc::CallbackServerContext* context,
                                                          const v1::ListCheckpointsRequest* request,
                                                          v1::ListCheckpointsResponse* response) {
  Result<std::vector<CheckpointRecord>> list = service_.Checkpoints(request->job_id());
  if (list.ok()) {
    for (const CheckpointRecord& item : *list) *response->add_checkpoints() = ToMessage(item);
  }
  return Finish(calls_.ReactorOf(context), "ListCheckpoints", list.status());
}

grpc::ServerUnaryReactor* CoordinatorApi::ProfileJob(grpc::CallbackServerContext* context,
                                                     const v1::ProfileJobRequest* request,
                                                     v1::ProfileJobResponse* response) {
  auto* reactor = calls_.ReactorOf(context);
  service_.Profile(request->id(), request->steps(),
                   [this, reactor, response](const Result<JobProfile>& profile) {
                     if (profile.ok()) {
                       response->set_id(profile->job_id);
                       response->set_report_json(profile->report_json);
                     }
                     Finish(reactor, "ProfileJob", profile.status());
                   });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorApi::GetVersion(grpc::CallbackServerContext* context,
                                                     const v1::GetVersionRequest*,
                                                     v1::GetVersionResponse* response) {
  response->set_version(kVersion);
  response->set_api_level(kApiLevel);
  return Finish(calls_.ReactorOf(context), "GetVersion", OkStatus());
}

}  // namespace weft::coordinator
