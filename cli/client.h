#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"
#include "common/tls/certificate.h"
#include "weft/v1/coordinator.grpc.pb.h"

namespace weft::cli {

/// How to reach a coordinator, and as whom.
struct ServerAccess {
  std::string address;          ///< "host:port"
  tls::Files tls = {};          ///< Empty: plain text.
  std::string token_file = {};  ///< Of mode 0600; empty: no token.
  bool insecure = false;        ///< Plain text to other machines, too; never with a token.
};

/// A connection to the coordinator. Unary calls have a deadline and are tried again while the
/// service is away; streams reconnect by themselves until the caller's callback says stop. Jobs,
/// workers, queues and people may be named as `-o name` prints them (BareName).
class Client {
 public:
  /// `timeout_seconds` bounds each unary call with all its retries. Where files cannot be used, or
  /// calls would go over the network in plain text, calls fail with the reason.
  Client(const ServerAccess& access, double timeout_seconds);

  Result<v1::SubmitJobResponse> SubmitJob(const v1::JobSpec& spec, const std::string& request_id);
  Result<v1::Job> GetJob(const std::string& id);
  /// The newest `limit` jobs that `request` asks for.
  Result<std::vector<v1::Job>> ListJobs(v1::ListJobsRequest request, int limit);
  Result<v1::Job> CancelJob(const std::string& id);
  Result<v1::Job> RetryJob(const std::string& id);
  Result<v1::Job> PauseJob(const std::string& id);
  Result<v1::Job> ResumeJob(const std::string& id);
  Result<v1::Job> UpdateJob(v1::UpdateJobRequest request);
  Result<v1::ExplainJobResponse> ExplainJob(const std::string& id);
  Result<std::vector<v1::Queue>> ListQueues();
  Result<v1::DeleteJobResponse> DeleteJob(const std::string& id, bool delete_run_dir);
  Result<v1::PlanReport> PlanJob(const v1::PlanJobRequest& request);
  Result<v1::ExplainPlanResponse> ExplainPlan(const v1::ExplainPlanRequest& request);
  Result<v1::CalibratePlansResponse> CalibratePlans(const v1::CalibratePlansRequest& request);
  Result<std::vector<v1::Worker>> ListWorkers();
  /// Oldest first.
  Result<std::vector<v1::JobEvent>> ListEvents(const std::string& id);
  Status ForgetWorker(const std::string& id);
  Result<v1::Worker> SetWorkerScheduling(v1::SetWorkerSchedulingRequest request);
  Result<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& id);
  /// Returns when the steps are done.
  Result<v1::ProfileJobResponse> ProfileJob(const std::string& id, int steps);
  Result<v1::GetVersionResponse> GetVersion();
  Result<v1::WhoAmIResponse> WhoAmI();
  Result<v1::ListAuditRecordsResponse> ListAuditRecords(v1::ListAuditRecordsRequest request);

  /// Calls `on_job` for the job as it is now and after each change, until it has ended or `on_job`
  /// returns false. Survives restarts of the coordinator for a minute of silence. kExhausted when
  /// `limit_seconds` (0: none) have passed.
  Status WatchJob(const std::string& id, const std::function<bool(const v1::Job&)>& on_job,
                  double limit_seconds = 0);

  /// Calls `on_line` for each log line; continues after the last line on a broken stream, so none
  /// is lost or doubled. With request.follow() until the job has ended.
  Status StreamLogs(v1::StreamLogsRequest request,
                    const std::function<bool(const v1::LogLine&)>& on_line);

  const std::string& server() const { return server_; }

 private:
  template <class Request, class Response>
  using Method = grpc::Status (v1::Coordinator::Stub::*)(grpc::ClientContext*, const Request&,
                                                         Response*);
  template <class Request, class Response>
  Result<Response> Call(Method<Request, Response> method, const Request& request);
  Status Explain(const grpc::Status& status) const;
  Status Open(const ServerAccess& access);
  /// Says who calls.
  void Introduce(grpc::ClientContext& context) const;
  /// A moment after a call that found no coordinator.
  void Pause();

  std::string server_;
  double timeout_seconds_;
  Status opened_;
  std::string token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

/// What a command was given for a "job", "worker", "queue" or "person", without the kind that
/// `-o name` prints before it: "ID" of "job/ID". Any other text as it is.
std::string BareName(std::string_view kind, const std::string& text);

/// A random id, 32 hex digits.
std::string RandomId();

}  // namespace weft::cli
