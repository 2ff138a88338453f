#include "tests/framework/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

#include "common/env.h"
#include "common/json.h"
#include "common/rng.h"
#include "worker/daemon/process_scan.h"

namespace weft::testing {
namespace {

using std::chrono::seconds;

std::string Binary(const char* name) {
  return std::string(WEFT_BINARY_DIR) + "/" + name;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A number in a small JSON file that a daemon leaves; 0 while it is not there.
Json ReadJson(const std::string& path) {
  auto json = ParseJson(ReadText(path));
  return json.ok() && json->is_object() ? *json : Json::object();
}

/// Sentences of made-up words with some structure, so that a model can learn from them.
std::string MakeText(uint64_t seed, int words) {
  static constexpr const char* kWords[] = {"warp", "weft", "loom",  "thread", "shuttle", "the",
                                           "runs", "over", "under", "and",    "cloth",   "a"};
  PhiloxStream random({seed, 0, SiteHash("text")});
  std::string text;
  uint64_t word = 0;
  for (int i = 0; i < words; ++i) {
    word = random.Below(4) == 0 ? random.Below(12) : (word * 5 + 1) % 12;
    text += kWords[word];
    text += random.Below(9) == 0 ? ".\n" : " ";
  }
  return text;
}

bool IsTerminal(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

template <class Request>
void SetDeadline(grpc::ClientContext& context, Request& /*request*/) {
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(10));
}

}  // namespace

Cluster::Cluster(Options options) : options_(std::move(options)) {
  std::string pattern = ::testing::TempDir() + "weft_XXXXXX";
  dir_ = mkdtemp(pattern.data());
  EXPECT_TRUE(Env::Posix().CreateDirs(dir_ + "/runs").ok());
  std::ofstream(dir_ + "/train.txt") << MakeText(1, 12000);
  std::ofstream(dir_ + "/validation.txt") << MakeText(2, 1500);
  if (options_.prepare) {
    EXPECT_TRUE(Env::Posix().CreateDirs(dir_ + "/coordinator").ok());
    options_.prepare(dir_ + "/coordinator");
  }
  StartCoordinator(options_.coordinator);
  for (int i = 0; options_.cuttable && i < options_.workers; ++i) {
    links_.push_back(std::make_unique<NetworkLink>(address_));
  }
  workers_.resize(static_cast<size_t>(options_.workers));
  for (int i = 0; i < options_.workers; ++i) {
    StartWorker(i);
    AwaitWorkers(i + 1);
  }
}

Cluster::~Cluster() {
  for (const auto& each : links_) each->Heal();
  for (Process& worker : workers_) {
    worker.Signal(SIGCONT);
    worker.Signal(SIGTERM);
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].Alive()) continue;
    auto status = workers_[i].WaitForEnd(seconds(20));
    EXPECT_TRUE(status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0)
        << "worker " << i << " must drain and exit with 0\n"
        << LogTails();
  }
  if (coordinator_.Alive()) {
    coordinator_.Signal(SIGTERM);
    auto status = coordinator_.WaitForEnd(seconds(10));
    EXPECT_TRUE(status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0)
        << "the coordinator must exit with 0\n"
        << LogTails();
  }
  for (pid_t pid : AllPids()) {
    ADD_FAILURE() << "process " << pid
                  << " is left: " << ReadText("/proc/" + std::to_string(pid) + "/cmdline");
    kill(pid, SIGKILL);
  }
  if (::testing::Test::HasFailure()) {
    std::fprintf(stderr, "%s\nfolder kept: %s\n", LogTails().c_str(), dir_.c_str());
  } else {
    EXPECT_TRUE(Env::Posix().RemoveTree(dir_).ok());
  }
}

Environment Cluster::WithMarker(Environment environment) const {
  environment["WEFT_TEST_CLUSTER"] = dir_;
  return environment;
}

void Cluster::StartCoordinator(const Environment& environment) {
  std::string ports = dir_ + "/coordinator/coordinator.json";
  unlink(ports.c_str());
  coordinator_ = Process::Start(
      {Binary("weft-coordinator"), "--listen", address_.empty() ? "127.0.0.1:0" : address_,
       "--metrics-listen", "127.0.0.1:0", "--data-dir", dir_ + "/coordinator", "--run-root",
       dir_ + "/runs", "--lease-seconds", std::to_string(options_.lease_seconds),
       "--heartbeat-seconds", std::to_string(options_.heartbeat_seconds)},
      WithMarker(environment), dir_ + "/coordinator.log");
  bool up =
      Eventually([&] { return !ReadJson(ports).empty() || !coordinator_.Alive(); }, seconds(20));
  ASSERT_TRUE(up) << LogTails();
  if (!coordinator_.Alive()) return;  // crashed as a failpoint told it to
  address_ = ReadJson(ports).value("address", "");
  ASSERT_FALSE(address_.empty()) << LogTails();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  api_ = v1::Coordinator::NewStub(
      grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
}

void Cluster::ExpectSameDecisions(const std::vector<std::string>& decided) {
  coordinator_.Signal(SIGTERM);
  ASSERT_TRUE(coordinator_.WaitForEnd(seconds(20))) << LogTails();
  const std::string folder = dir_ + "/coordinator/decisions";
  std::map<std::string, int> seen;
  const auto names = Env::Posix().ListDir(folder);
  ASSERT_TRUE(names.ok()) << names.status().message();
  for (const std::string& name : *names) {
    const std::string path = folder + "/" + name;
    std::istringstream lines(ReadText(path));
    for (std::string line; std::getline(lines, line);) {
      const auto pass = ParseJson(line);
      ASSERT_TRUE(pass.ok()) << path << ": " << line;
      for (const auto& [kind, list] : pass->at("decisions").items()) seen[kind] += !list.empty();
    }
    Process replay = Process::Start({Binary("weft-coordinator"), "--replay-decisions", path}, {},
                                    dir_ + "/replay.log");
    EXPECT_EQ(replay.WaitForEnd(seconds(60)), 0) << path << ": " << ReadText(dir_ + "/replay.log");
  }
  for (const std::string& kind : decided) EXPECT_GT(seen[kind], 0) << "no pass has " << kind;
  StartCoordinator();  // for workers to leave it
}

std::string Cluster::SharedProfile() const {
  return Binary("../test_profile_") + std::to_string(options_.cores) + ".json";
}

void Cluster::StartWorker(int index, const Environment& environment) {
  // The machine is measured once for all clusters of a build. Workers look whether what was
  // measured is of their version and machine.
  const std::string kept = WorkerDir(index) + "/profile.json";
  if (const std::string profile = ReadText(SharedProfile());
      !profile.empty() && ReadText(kept).empty()) {
    EXPECT_TRUE(Env::Posix().CreateDirs(WorkerDir(index)).ok());
    std::ofstream(kept) << profile;
  }
  Environment all = options_.ranks;
  for (const auto& [name, value] : environment) all[name] = value;
  workers_[static_cast<size_t>(index)] = Process::Start(
      {Binary("weft-worker"), "--coordinator", options_.cuttable ? link(index).address() : address_,
       "--data-dir", WorkerDir(index), "--run-root", dir_ + "/runs", "--worker-id",
       "worker-" + std::to_string(index), "--cores", std::to_string(options_.cores),
       "--memory-limit", "2GiB", "--metrics-listen", "127.0.0.1:0"},
      WithMarker(all), WorkerDir(index) + ".log");
}

void Cluster::AwaitWorkers(int count) {
  bool ready = Eventually(
      [&] {
        grpc::ClientContext context;
        v1::ListWorkersRequest request;
        v1::ListWorkersResponse response;
        SetDeadline(context, request);
        if (!api_->ListWorkers(&context, request, &response).ok()) return false;
        return std::count_if(response.workers().begin(), response.workers().end(),
                             [](const auto& w) { return w.state() == v1::READY; }) >= count;
      },
      seconds(30));
  ASSERT_TRUE(ready) << "workers do not attach\n" << LogTails();
  if (options_.ranks.empty() && ReadText(SharedProfile()).empty()) {
    const std::string profile = ReadText(WorkerDir(0) + "/profile.json");
    EXPECT_TRUE(WriteFileAtomic(Env::Posix(), SharedProfile(), profile).ok());
  }
}

std::vector<pid_t> Cluster::RankPids(const std::string& job_id, int worker) const {
  // The name of a rank's spec, JOB-EPOCH-RANK.json, says which one it is.
  const std::regex spec(job_id + R"(-\d+-(\d+)\.json)");
  std::vector<std::pair<int, pid_t>> found;
  std::vector<std::string> marker{"WEFT_TEST_CLUSTER=" + dir_};
  if (worker >= 0) marker.push_back("WEFT_RANK_OWNER=" + WorkerDir(worker));
  for (pid_t pid : daemon::FindProcesses(marker)) {
    const std::string command = ReadText("/proc/" + std::to_string(pid) + "/cmdline");
    std::smatch match;
    if (std::regex_search(command, match, spec)) found.emplace_back(std::stoi(match[1]), pid);
  }
  std::ranges::sort(found);
  std::vector<pid_t> pids;
  for (const auto& [rank, pid] : found) pids.push_back(pid);
  return pids;
}

std::vector<pid_t> Cluster::AllPids() const {
  return daemon::FindProcesses({"WEFT_TEST_CLUSTER=" + dir_});
}

v1::JobSpec Cluster::TinyJob(const std::string& name, int64_t steps, int64_t ranks) const {
  v1::JobSpec spec;
  spec.set_name(name);
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_layers(2);
  model.set_width(32);
  model.set_heads(2);
  model.set_context(32);
  spec.mutable_data()->add_train(dir_ + "/train.txt");
  spec.mutable_data()->add_validation(dir_ + "/validation.txt");
  spec.mutable_data()->mutable_tokenizer()->set_vocab_size(300);
  spec.mutable_optimizer()->set_learning_rate(3e-3);
  spec.mutable_schedule()->set_warmup_steps(5);
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_steps(steps);
  train.set_global_batch(8);
  train.set_precision("fp32");
  train.set_eval_every_steps(20);
  train.set_eval_sequences(8);
  train.set_log_every_steps(1);
  spec.mutable_checkpoint()->set_every_steps(5);
  spec.mutable_checkpoint()->set_keep_last(3);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->set_threads_per_rank(1);
  spec.mutable_resources()->set_micro_batch(2);
  return spec;
}

v1::JobSpec Cluster::OpenJob(const std::string& name, int64_t steps) const {
  v1::JobSpec spec = TinyJob(name, steps, 0);
  spec.mutable_model()->set_layers(4);
  spec.mutable_model()->set_width(128);
  spec.mutable_model()->set_context(64);
  spec.mutable_train()->set_global_batch(16);
  spec.mutable_checkpoint()->set_every_steps(4);
  return spec;
}

grpc::Status Cluster::TrySubmit(const v1::JobSpec& spec, const std::string& request_id,
                                v1::SubmitJobResponse* response) {
  grpc::ClientContext context;
  v1::SubmitJobRequest request;
  SetDeadline(context, request);
  *request.mutable_spec() = spec;
  request.set_client_request_id(request_id);
  return api_->SubmitJob(&context, request, response);
}

std::string Cluster::Submit(const v1::JobSpec& spec) {
  std::string request_id = dir_ + "#" + std::to_string(++submissions_);
  v1::SubmitJobResponse response;
  grpc::Status status;
  Eventually(
      [&] {
        status = TrySubmit(spec, request_id, &response);
        return status.ok() || (status.error_code() != grpc::StatusCode::UNAVAILABLE &&
                               status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED);
      },
      seconds(30));
  EXPECT_TRUE(status.ok()) << status.error_message() << LogTails();
  return response.job().id();
}

v1::Job Cluster::Get(const std::string& job_id) {
  grpc::ClientContext context;
  v1::GetJobRequest request;
  SetDeadline(context, request);
  request.set_id(job_id);
  v1::Job job;
  if (!api_->GetJob(&context, request, &job).ok()) job.Clear();
  return job;
}

v1::Job Cluster::Await(const std::string& job_id, v1::JobState state, seconds timeout) {
  v1::Job job;
  Eventually(
      [&] {
        job = Get(job_id);
        return job.state() == state || IsTerminal(job.state());
      },
      timeout);
  EXPECT_EQ(v1::JobState_Name(job.state()), v1::JobState_Name(state))
      << job_id << ": " << job.message() << LogTails();
  return job;
}

v1::Job Cluster::AwaitStep(const std::string& job_id, int64_t step, seconds timeout) {
  v1::Job job;
  bool reached = Eventually(
      [&] {
        job = Get(job_id);
        return (job.state() == v1::RUNNING && job.progress().step() >= step) ||
               IsTerminal(job.state());
      },
      timeout);
  EXPECT_TRUE(reached) << job_id << " does not reach step " << step << LogTails();
  return job;
}

std::vector<v1::LogLine> Cluster::Logs(const std::string& job_id, bool follow) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience * seconds(60));
  v1::StreamLogsRequest request;
  request.set_id(job_id);
  request.set_follow(follow);
  auto stream = api_->StreamLogs(&context, request);
  std::vector<v1::LogLine> lines;
  for (v1::LogLine line; stream->Read(&line);) lines.push_back(line);
  grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return lines;
}

std::vector<v1::Checkpoint> Cluster::Checkpoints(const std::string& job_id) {
  grpc::ClientContext context;
  v1::ListCheckpointsRequest request;
  SetDeadline(context, request);
  request.set_job_id(job_id);
  v1::ListCheckpointsResponse response;
  EXPECT_TRUE(api_->ListCheckpoints(&context, request, &response).ok());
  return {response.checkpoints().begin(), response.checkpoints().end()};
}

std::string Cluster::LossCurve(const std::string& job_id) const {
  return ReadText(RunDir(job_id) + "/loss.jsonl");
}

std::vector<double> Cluster::Losses(const std::string& job_id) const {
  std::vector<double> losses;
  std::istringstream lines(LossCurve(job_id));
  for (std::string line; std::getline(lines, line);) {
    auto json = ParseJson(line);
    EXPECT_TRUE(json.ok()) << line;
    if (json.ok()) losses.push_back(json->at("loss").get<double>());
  }
  return losses;
}

std::string Cluster::CoordinatorMetrics() const {
  return FetchMetrics(ReadJson(dir_ + "/coordinator/coordinator.json").value("metrics_port", 0));
}

std::string Cluster::WorkerMetrics(int index) const {
  return FetchMetrics(ReadJson(WorkerDir(index) + "/daemon.json").value("metrics_port", 0));
}

std::string Cluster::LogTails() const {
  std::string tails;
  for (int i = -1; i < options_.workers; ++i) {
    std::string text = ReadText(i < 0 ? dir_ + "/coordinator.log" : WorkerDir(i) + ".log");
    constexpr size_t kTail = 3000;
    tails += "\n--- " + (i < 0 ? "coordinator" : "worker " + std::to_string(i)) + ":\n" +
             text.substr(text.size() - std::min(text.size(), kTail));
  }
  return tails;
}

std::string FetchMetrics(int port) {
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(seconds(5));
  stream.connect("127.0.0.1", std::to_string(port));
  stream << "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n" << std::flush;
  std::string reply{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  size_t body = reply.find("\r\n\r\n");
  return body == std::string::npos ? "" : reply.substr(body + 4);
}

std::optional<double> MetricValue(const std::string& metrics, const std::string& series) {
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(series + " ", 0) == 0) return std::atof(line.c_str() + series.size() + 1);
  }
  return std::nullopt;
}

double MetricSum(const std::string& metrics, const std::string& name) {
  double sum = 0;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + "{", 0) != 0 && line.rfind(name + " ", 0) != 0) continue;
    sum += std::atof(line.c_str() + line.rfind(' '));
  }
  return sum;
}

void CheckMetrics(const std::string& metrics) {
  ASSERT_FALSE(metrics.empty());
  if (access("/usr/bin/promtool", X_OK) != 0) GTEST_SKIP() << "promtool is not installed";
  std::string path = ::testing::TempDir() + "weft_metrics_" + std::to_string(getpid());
  std::ofstream(path) << metrics;
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen(("promtool check metrics < " + path + " 2>&1").c_str(), "r"), &pclose);
  std::string output;
  char buffer[4096];
  while (size_t n = fread(buffer, 1, sizeof(buffer), pipe.get())) output.append(buffer, n);
  EXPECT_EQ(pclose(pipe.release()), 0) << output;
  unlink(path.c_str());
}

}  // namespace weft::testing
