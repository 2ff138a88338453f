#include "cli/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "common/clock.h"
#include "common/http/address.h"
#include "common/secret.h"
#include "proto/grpc_status.h"
#include "proto/grpc_tls.h"

namespace weft::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

/// Jobs in one answer of the coordinator.
constexpr int kLargestPage = 5000;
constexpr auto kRetryPause = milliseconds(200);
/// How long a stream waits for a coordinator that is away.
constexpr double kPatienceSeconds = 60;

double Now() {
  return ToSeconds(Clock::System().Monotonic());
}

/// Worth trying again: the coordinator is starting, restarting or briefly out of reach.
bool IsTransient(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE;
}

bool Holds(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// What only gRPC's own messages hold.
constexpr const char* kMarksOfGrpc[] = {
    "ipv4:",   "ipv6:",  "failed to connect", "DNS",  "Socket", "RST_STREAM",           "GOAWAY",
    "recvmsg", "stream", "transport",         "http", "SSL",    "Hostname Verification"};

/// Why a call did not reach a coordinator, from what gRPC says of it: its own text is about sockets
/// and addresses. What a coordinator says itself is passed on.
std::string ReasonOf(const std::string& message) {
  if (message.empty()) return "the connection broke off";
  const bool own = std::none_of(std::begin(kMarksOfGrpc), std::end(kMarksOfGrpc),
                                [&](const char* mark) { return Holds(message, mark); });
  if (own) return message;
  struct Reason {
    const char* part;
    const char* words;
  };
  static constexpr Reason kReasons[] = {
      {"Connection refused", "the connection is refused"},
      {"DNS", "the name of the host is not known"},
      {"Name or service not known", "the name of the host is not known"},
      {"timed out", "the connection takes too long"},
      {"Timeout", "the connection takes too long"},
      {"No route to host", "there is no route to the host"},
      {"Network is unreachable", "the network cannot be reached"},
      {"certificate verify failed", "its certificate is not from the CA of --tls-ca, or has ended"},
      {"Hostname Verification Check failed", "its certificate is of another host"},
      {"wrong version number", "it does not speak TLS"},
      {"SSL", "the handshake of TLS failed"},
      {"http1.x", "what listens there is another kind of server"},
      {"settings", "what listens there is another kind of server"},
      {"handshake", "what listens there is another kind of server"},
      {"failed to connect", "the connection cannot be made"}};
  for (const Reason& reason : kReasons) {
    if (Holds(message, reason.part)) return reason.words;
  }
  return "the connection broke off";
}

}  // namespace

std::string BareName(std::string_view kind, const std::string& text) {
  const std::string mark = std::string(kind) + "/";
  return text.starts_with(mark) ? text.substr(mark.size()) : text;
}

std::string RandomId() {
  std::random_device source;
  char text[33];
  std::snprintf(text, sizeof(text), "%08x%08x%08x%08x", source(), source(), source(), source());
  return text;
}

Client::Client(const ServerAccess& access, double timeout_seconds)
    : server_(access.address), timeout_seconds_(timeout_seconds) {
  opened_ = Open(access);  // which fills in what is declared behind it
}

Status Client::Open(const ServerAccess& access) {
  if (access.tls.empty()) {
    WEFT_ASSIGN_OR_RETURN(const http::HostPort parts, http::ParseAddress(server_));
    const bool remote = !http::IsLoopback(parts.host);
    if (remote && !access.token_file.empty()) {
      return InvalidError("the token would go to " + server_ +
                          " in plain text, for all on the way to read; hint: --tls-ca FILE");
    }
    if (remote && !access.insecure) {
      return InvalidError("calls would go to " + server_ +
                          " in plain text, for all on the way to read and change; hint: --tls-ca "
                          "FILE, or --insecure if the network is yours alone");
    }
  }
  if (!access.token_file.empty()) {
    WEFT_ASSIGN_OR_RETURN(token_, ReadSecretFile(access.token_file));
    token_.erase(token_.find_last_not_of(" \t\r\n") + 1);
  }
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                        ChannelCredentialsOf(access.tls));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, 64 << 20);
  channel_ = grpc::CreateCustomChannel(server_, credentials, arguments);
  stub_ = v1::Coordinator::NewStub(channel_);
  return OkStatus();
}

void Client::Introduce(grpc::ClientContext& context) const {
  if (!token_.empty()) context.AddMetadata(kTokenMetadata, std::string(kTokenScheme) + token_);
}

// Calls that fail at once do not wait for a connection that is being made, and by itself gRPC looks
// after it every five seconds.
void Client::Pause() {
  const auto until = system_clock::now() + kRetryPause;
  if (channel_->GetState(true) != GRPC_CHANNEL_READY) (void)channel_->WaitForConnected(until);
  std::this_thread::sleep_until(until);
}

Status Client::Explain(const grpc::Status& status) const {
  if (IsTransient(status)) {
    return UnavailableError("no coordinator answers at " + server_ + " (" +
                            ReasonOf(status.error_message()) +
                            "); hint: `weft up` starts one on this machine, or name another with "
                            "--server HOST:PORT");
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return UnavailableError("the coordinator at " + server_ + " did not answer in time");
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return InvalidError("the server at " + server_ +
                        " does not know this call; hint: `weft version` compares its version with "
                        "this one's, if it is a coordinator");
  }
  return FromGrpcStatus(status);
}

template <class Request, class Response>
Result<Response> Client::Call(Method<Request, Response> method, const Request& request) {
  WEFT_RETURN_IF_ERROR(opened_);
  double give_up = Now() + timeout_seconds_;
  while (true) {
    grpc::ClientContext context;
    Introduce(context);
    auto left = milliseconds(static_cast<int64_t>(std::max(give_up - Now(), 0.05) * 1e3));
    context.set_deadline(system_clock::now() + left);
    Response response;
    grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (status.ok()) return response;
    if (!IsTransient(status) || Now() + 0.2 > give_up) return Explain(status);
    Pause();
  }
}

Result<v1::SubmitJobResponse> Client::SubmitJob(const v1::JobSpec& spec,
                                                const std::string& request_id) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_client_request_id(request_id);
  return Call(&v1::Coordinator::Stub::SubmitJob, request);
}

Result<v1::Job> Client::GetJob(const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(BareName("job", id));
  return Call(&v1::Coordinator::Stub::GetJob, request);
}

Result<std::vector<v1::Job>> Client::ListJobs(v1::ListJobsRequest request, int limit) {
  request.set_queue(BareName("queue", request.queue()));
  std::vector<v1::Job> jobs;
  do {
    request.set_page_size(std::min(limit - static_cast<int>(jobs.size()), kLargestPage));
    auto page = Call(&v1::Coordinator::Stub::ListJobs, request);
    if (!page.ok()) return page.status();
    for (auto& job : *page->mutable_jobs()) jobs.push_back(std::move(job));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty() && static_cast<int>(jobs.size()) < limit);
  return jobs;
}

Result<v1::Job> Client::CancelJob(const std::string& id) {
  v1::CancelJobRequest request;
  request.set_id(BareName("job", id));
  return Call(&v1::Coordinator::Stub::CancelJob, request);
}

Result<v1::Job> Client::RetryJob(const std::string& id) {
  v1::RetryJobRequest request;
  request.set_id(BareName("job", id));
  return Call(&v1::Coordinator::Stub::RetryJob, request);
}

Result<v1::Job> Client::PauseJob(const std::string& id) {
  v1::PauseJobRequest request;
  request.set_id(BareName("job", id));
  return Call(&v1::Coordinator::Stub::PauseJob, request);
}

Result<v1::Job> Client::ResumeJob(const std::string& id) {
  v1::ResumeJobRequest request;
  request.set_id(BareName("job", id));
  return Call(&v1::Coordinator::Stub::ResumeJob, request);
}

Result<v1::Job> Client::UpdateJob(v1::UpdateJobRequest request) {
  request.set_id(BareName("job", request.id()));
  if (request.has_queue()) request.set_queue(BareName("queue", request.queue()));
  return Call(&v1::Coordinator::Stub::UpdateJob, request);
}

Result<v1::ExplainJobResponse> Client::ExplainJob(const std::string& id) {
  v1::ExplainJobRequest request;
  request.set_id(BareName("job", id));
  return Call(&v1::Coordinator::Stub::ExplainJob, request);
}

Result<std::vector<v1::Queue>> Client::ListQueues() {
  auto response = Call(&v1::Coordinator::Stub::ListQueues, v1::ListQueuesRequest());
  if (!response.ok()) return response.status();
  return std::vector<v1::Queue>(response->queues().begin(), response->queues().end());
}

Result<v1::DeleteJobResponse> Client::DeleteJob(const std::string& id, bool delete_run_dir) {
  v1::DeleteJobRequest request;
  request.set_id(BareName("job", id));
  request.set_delete_run_dir(delete_run_dir);
  return Call(&v1::Coordinator::Stub::DeleteJob, request);
}

Result<v1::PlanReport> Client::PlanJob(const v1::PlanJobRequest& request) {
  return Call(&v1::Coordinator::Stub::PlanJob, request);
}

Result<v1::ExplainPlanResponse> Client::ExplainPlan(const v1::ExplainPlanRequest& request) {
  return Call(&v1::Coordinator::Stub::ExplainPlan, request);
}

Result<v1::CalibratePlansResponse> Client::CalibratePlans(
    const v1::CalibratePlansRequest& request) {
  return Call(&v1::Coordinator::Stub::CalibratePlans, request);
}

Result<std::vector<v1::Worker>> Client::ListWorkers() {
  auto response = Call(&v1::Coordinator::Stub::ListWorkers, v1::ListWorkersRequest());
  if (!response.ok()) return response.status();
  return std::vector<v1::Worker>(response->workers().begin(), response->workers().end());
}

Result<std::vector<v1::JobEvent>> Client::ListEvents(const std::string& id) {
  v1::ListEventsRequest request;
  request.set_job_id(BareName("job", id));
  auto response = Call(&v1::Coordinator::Stub::ListEvents, request);
  if (!response.ok()) return response.status();
  return std::vector<v1::JobEvent>(response->events().begin(), response->events().end());
}

Status Client::ForgetWorker(const std::string& id) {
  v1::ForgetWorkerRequest request;
  request.set_worker_id(BareName("worker", id));
  return Call(&v1::Coordinator::Stub::ForgetWorker, request).status();
}

Result<v1::Worker> Client::SetWorkerScheduling(v1::SetWorkerSchedulingRequest request) {
  request.set_worker_id(BareName("worker", request.worker_id()));
  return Call(&v1::Coordinator::Stub::SetWorkerScheduling, request);
}

Result<std::vector<v1::Checkpoint>> Client::ListCheckpoints(const std::string& id) {
  v1::ListCheckpointsRequest request;
  request.set_job_id(BareName("job", id));
  auto response = Call(&v1::Coordinator::Stub::ListCheckpoints, request);
  if (!response.ok()) return response.status();
  return std::vector<v1::Checkpoint>(response->checkpoints().begin(),
                                     response->checkpoints().end());
}

Result<v1::ProfileJobResponse> Client::ProfileJob(const std::string& id, int steps) {
  v1::ProfileJobRequest request;
  request.set_id(BareName("job", id));
  request.set_steps(steps);
  return Call(&v1::Coordinator::Stub::ProfileJob, request);
}

Result<v1::GetVersionResponse> Client::GetVersion() {
  return Call(&v1::Coordinator::Stub::GetVersion, v1::GetVersionRequest());
}

Result<v1::WhoAmIResponse> Client::WhoAmI() {
  return Call(&v1::Coordinator::Stub::WhoAmI, v1::WhoAmIRequest());
}

Result<v1::ListAuditRecordsResponse> Client::ListAuditRecords(v1::ListAuditRecordsRequest request) {
  request.set_who(BareName("person", BareName("worker", request.who())));
  request.set_object(BareName("job", BareName("worker", request.object())));
  return Call(&v1::Coordinator::Stub::ListAuditRecords, request);
}

Status Client::WatchJob(const std::string& id, const std::function<bool(const v1::Job&)>& on_job,
                        double limit_seconds) {
  WEFT_RETURN_IF_ERROR(opened_);
  v1::WatchJobRequest request;
  request.set_id(BareName("job", id));
  double last_heard = Now();
  double give_up = limit_seconds > 0 ? last_heard + limit_seconds : 0;
  while (true) {
    grpc::ClientContext context;
    Introduce(context);
    if (give_up > 0) {
      auto left = milliseconds(static_cast<int64_t>(std::max(give_up - Now(), 0.0) * 1e3));
      context.set_deadline(system_clock::now() + left);
    }
    auto stream = stub_->WatchJob(&context, request);
    v1::JobUpdate update;
    while (stream->Read(&update)) {
      last_heard = Now();
      request.set_id(update.job().id());
      if (!on_job(update.job())) {
        context.TryCancel();
        (void)stream->Finish();
        return OkStatus();
      }
    }
    grpc::Status status = stream->Finish();
    if (status.ok()) return OkStatus();
    if (give_up > 0 &&
        (Now() >= give_up || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)) {
      return ExhaustedError("job " + request.id() + " did not get there within " +
                            std::to_string(limit_seconds) + " seconds");
    }
    if (!IsTransient(status) || Now() - last_heard > kPatienceSeconds) return Explain(status);
    Pause();
  }
}

Status Client::StreamLogs(v1::StreamLogsRequest request,
                          const std::function<bool(const v1::LogLine&)>& on_line) {
  WEFT_RETURN_IF_ERROR(opened_);
  request.set_id(BareName("job", request.id()));
  double last_heard = Now();
  while (true) {
    grpc::ClientContext context;
    Introduce(context);
    auto stream = stub_->StreamLogs(&context, request);
    v1::LogLine line;
    while (stream->Read(&line)) {
      last_heard = Now();
      request.set_after_sequence(line.sequence());
      request.set_tail(0);
      if (!on_line(line)) {
        context.TryCancel();
        (void)stream->Finish();
        return OkStatus();
      }
    }
    grpc::Status status = stream->Finish();
    if (status.ok()) return OkStatus();
    if (!IsTransient(status) || Now() - last_heard > kPatienceSeconds) return Explain(status);
    Pause();
  }
}

}  // namespace weft::cli
