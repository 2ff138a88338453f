#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/framework/network_link.h"
#include "tests/framework/process.h"
#include "weft/v1/coordinator.grpc.pb.h"

namespace weft::testing {

using Environment = std::map<std::string, std::string>;

/// A real coordinator and workers, as processes, in a folder of their own, on ports that the kernel
/// chose. Waits are bounded: what does not come in time fails the test with the end of the logs.
/// The destructor shuts everything down as an operator would and checks that no process is left.
class Cluster {
 public:
  struct Options {
    int workers = 2;
    int cores = 2;  ///< Offered by each worker.
    double lease_seconds = 2;
    double heartbeat_seconds = 0.1;
    Environment coordinator = {};  ///< For its first start.
    Environment ranks = {};        ///< For every worker, and so for its ranks.
    /// Gets the coordinator's data folder, which is empty, before its first start.
    std::function<void(const std::string& data_dir)> prepare = nullptr;
    bool cuttable = false;  ///< Each worker reaches the coordinator through a link().
  };

  explicit Cluster(Options options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Processes.
  Process& coordinator() { return coordinator_; }
  Process& worker(int index) { return workers_[static_cast<size_t>(index)]; }
  /// Between worker `index` and the coordinator; of a cuttable cluster.
  NetworkLink& link(int index) { return *links_[static_cast<size_t>(index)]; }
  /// Starts the coordinator again after its end, on the same port.
  void StartCoordinator(const Environment& environment = {});
  /// Starts worker `index` (again).
  void StartWorker(int index, const Environment& environment = {});
  /// All workers are READY.
  void AwaitWorkers(int count);
  /// Pids of the living ranks of a job, by rank, on one worker or (-1) all.
  std::vector<pid_t> RankPids(const std::string& job_id, int worker = -1) const;
  /// Every process that belongs to this cluster.
  std::vector<pid_t> AllPids() const;

  // Jobs.
  /// A few-second job on text that the cluster made: 2 ranks, fp32, a checkpoint every 5 steps.
  v1::JobSpec TinyJob(const std::string& name, int64_t steps = 40, int64_t ranks = 2) const;
  /// The same for ranks whose number the planner chooses; large enough that four are faster than
  /// two, with a checkpoint every 4 steps.
  v1::JobSpec OpenJob(const std::string& name, int64_t steps) const;
  /// Retries while the coordinator is away, with the same request id; the job's id.
  std::string Submit(const v1::JobSpec& spec);
  grpc::Status TrySubmit(const v1::JobSpec& spec, const std::string& request_id,
                         v1::SubmitJobResponse* response);
  v1::Job Get(const std::string& job_id);
  /// Waits for a state; a terminal state that is another one fails the test at once.
  v1::Job Await(const std::string& job_id, v1::JobState state,
                std::chrono::seconds timeout = std::chrono::seconds(60));
  /// Waits until the job's newest attempt has reported `step`, or the job has ended.
  v1::Job AwaitStep(const std::string& job_id, int64_t step,
                    std::chrono::seconds timeout = std::chrono::seconds(60));
  std::vector<v1::LogLine> Logs(const std::string& job_id, bool follow = false);
  std::vector<v1::Checkpoint> Checkpoints(const std::string& job_id);
  /// The loss curve: loss.jsonl, byte for byte.
  std::string LossCurve(const std::string& job_id) const;
  /// The losses in it, step by step.
  std::vector<double> Losses(const std::string& job_id) const;
  v1::Coordinator::Stub& api() { return *api_; }

  /// Ends the coordinator, has it decide once more what it recorded, and starts it again. Fails the
  /// test unless some pass did each of `decided` ("starts", "preemptions", "resizes") and all
  /// passes decide the same.
  void ExpectSameDecisions(const std::vector<std::string>& decided);

  // Places.
  const std::string& dir() const { return dir_; }
  std::string RunDir(const std::string& job_id) const { return dir_ + "/runs/" + job_id; }
  std::string address() const { return address_; }
  /// Text of /metrics of the coordinator, or of a worker.
  std::string CoordinatorMetrics() const;
  std::string WorkerMetrics(int index) const;
  /// The last lines of every process's output, for messages.
  std::string LogTails() const;

 private:
  /// What a worker measured of this machine, for those of all test programs.
  std::string SharedProfile() const;
  std::string WorkerDir(int index) const { return dir_ + "/worker-" + std::to_string(index); }
  Environment WithMarker(Environment environment) const;

  Options options_;
  std::string dir_;
  std::string address_;  // empty until the coordinator has chosen
  int submissions_ = 0;
  std::unique_ptr<v1::Coordinator::Stub> api_;
  Process coordinator_;
  std::vector<std::unique_ptr<NetworkLink>> links_;  // by worker; of a cuttable cluster
  std::vector<Process> workers_;
};

/// GET /metrics of a local port; empty when nobody answers.
std::string FetchMetrics(int port);

/// Value of a series given as in the text format, "name{label=\"x\"}"; nullopt when there is none.
std::optional<double> MetricValue(const std::string& metrics, const std::string& series);

/// Sum over all series of that name.
double MetricSum(const std::string& metrics, const std::string& name);

/// Fails the test when `promtool check metrics` complains.
void CheckMetrics(const std::string& metrics);

}  // namespace weft::testing
