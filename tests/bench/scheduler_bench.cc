// Runs the scheduler of the coordinator and textbook policies over a cluster of a trace of jobs on
// a virtual clock, and prints a line of JSON for each policy; tests/bench/scheduler runs it over
// many.
//   scheduler_bench --trace FILE --cluster NAME --gpus N [--noise 0.2] [--policy NAME]...
// Or prints the curve along which jobs are resized, or times passes over a long queue:
//   scheduler_bench --curve | --passes
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/json.h"
#include "tests/bench/scheduler_simulator/baselines.h"
#include "tests/bench/scheduler_simulator/planned_curve.h"
#include "tests/bench/scheduler_simulator/production.h"
#include "tests/bench/scheduler_simulator/trace.h"

namespace weft::bench {
namespace {

/// The rules as shipped, with or without resizes.
Outcome SimulateOurs(const Trace& trace, int64_t gpus, const ScalingCurve& curve, bool elastic,
                     const coordinator::SchedulerRules& rules) {
  ProductionOptions options;
  options.rules = rules;
  options.elastic = elastic;
  if (!elastic) options.rules.scale_up.after_seconds = 0;
  return SimulateProduction(trace, gpus, curve, options);
}

/// A cluster of machines with eight GPUs, and jobs of 1 to 64. Mixed: in racks, one of four
/// machines with half as many GPUs, and jobs of several queues and priorities. One of four jobs
/// leaves its number of ranks open.
struct LongQueue {
  static constexpr int64_t kMachines = 1250, kGpus = 8, kMachinesOfARack = 32;

  LongQueue(int64_t jobs, bool mix) : mixed(mix) {
    for (int64_t i = 0; i < kMachines; ++i) {
      WorkerProfile& worker = snapshot.cluster.workers.emplace_back();
      worker.worker_id = "machine-" + std::to_string(i);
      worker.device = "cuda";
      worker.cores = 96;
      worker.memory_limit_bytes = int64_t{1} << 40;
      if (mixed) worker.rack = "rack-" + std::to_string(i / kMachinesOfARack);
      coordinator::FreeCapacity& free = snapshot.free[worker.worker_id];
      free = {worker.cores, worker.memory_limit_bytes, {}};
      const int64_t gpus = mixed && i % 4 == 0 ? kGpus / 2 : kGpus;
      for (int64_t index = 0; index < gpus; ++index) {
        DeviceSpec& device = worker.devices.emplace_back();
        device.index = index;
        device.memory_limit_bytes = int64_t{80} << 30;
        free.devices.insert(index);
      }
    }
    all_gpus = coordinator::AmountOf(snapshot.cluster).gpus;
    if (mixed) AddQueues();
    snapshot.now = static_cast<double>(jobs);
    for (int64_t i = 0; i < jobs; ++i) AddJob(i);
  }

  /// Two that share what belongs to a third of the cluster, and two that hold all the rest.
  void AddQueues() {
    const auto add = [this](const std::string& name, const std::string& parent, int64_t quota) {
      QueueSpec& queue = snapshot.queues.emplace_back();
      queue.name = name;
      queue.parent = parent;
      queue.quota_gpus = quota;
    };
    add("research", "", all_gpus / 3);
    add("vision", "research", all_gpus / 6);
    add("language", "research", all_gpus / 6);
    add("production", "", all_gpus / 2);
    add("nightly", "", 0);
    snapshot.queues.back().limit_gpus = all_gpus / 4;
  }

  void AddJob(int64_t i) {
    constexpr const char* kLeaves[] = {"vision", "language", "production", "nightly"};
    const int64_t gpus = int64_t{1} << (i * 7919 % 7);
    const bool open = mixed && i * 31 % 4 == 0;
    JobSpec& spec = specs[open ? 0 : gpus];
    spec.resources.ranks = open ? 0 : gpus;
    spec.resources.device = "cuda";
    coordinator::QueuedJob& job = snapshot.queue.emplace_back();
    job.id = "job-" + std::to_string(i);
    job.spec = &spec;
    job.submitted_at = static_cast<double>(i);
    job.steps_left = 1000 + i * 104729 % 100000;
    job.size = coordinator::JobSize{{gpus, 0}, 1};
    if (!mixed) return;
    job.queue = kLeaves[i * 17 % 4];
    job.priority = i * 13 % 3;
  }

  /// On the first machines; a pass finds them their place. As many ranks as it may have where their
  /// number is open.
  Result<PlanReport> PlanOf(const JobSpec& spec) {
    constexpr int64_t kMostRanks = 64;
    const int64_t most = spec.resources.max_ranks;
    const int64_t open = most > 0 ? std::min(most, kMostRanks) : kMostRanks;
    const int64_t ranks = spec.resources.ranks > 0 ? spec.resources.ranks : open;
    ++plans;
    PlanReport report;
    PlanCandidate& candidate = report.candidates.emplace_back();
    candidate.chosen = candidate.feasible = true;
    candidate.plan.device = "cuda";
    candidate.plan.prediction.step_seconds = 1;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      candidate.plan.rank_workers.push_back("machine-" + std::to_string(rank / kGpus));
      candidate.plan.rank_devices.push_back(rank % kGpus);
    }
    return report;
  }

  coordinator::SchedulerDecisions Pass(const char* name) {
    plans = 0;
    // Counts processor time of this thread: others may have the machine, too.
    const std::clock_t begin = std::clock();
    // The coordinator takes one for each pass.
    const coordinator::SchedulerSnapshot taken = snapshot;
    coordinator::SchedulerDecisions decisions = coordinator::Schedule(
        taken, [this](const JobSpec& spec, const ClusterProfile&) { return PlanOf(spec); });
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    std::printf("%s\n", Json{{"pass", (mixed ? "mixed " : "") + std::string(name)},
                             {"queued", snapshot.queue.size()},
                             {"gpus", all_gpus},
                             {"active", snapshot.active.size()},
                             {"starts", decisions.starts.size()},
                             {"preemptions", decisions.preemptions.size()},
                             {"plans_asked_for", plans},
                             {"processor_seconds", seconds}}
                            .dump()
                            .c_str());
    return decisions;
  }

  /// Carries out the starts.
  void Apply(const coordinator::SchedulerDecisions& decisions) {
    std::map<std::string, const coordinator::QueuedJob*> by_id;
    for (const coordinator::QueuedJob& job : snapshot.queue) by_id[job.id] = &job;
    std::set<std::string> started;
    for (const coordinator::StartDecision& start : decisions.starts) {
      const coordinator::QueuedJob& job = *by_id.at(start.job_id);
      TakeCapacity(running.emplace_back(start.plan), snapshot.free);
      coordinator::ActiveJob& active = snapshot.active.emplace_back();
      active.id = job.id;
      active.queue = job.queue;
      active.priority = job.priority;
      active.submitted_at = job.submitted_at;
      active.job.spec = job.spec;
      active.job.plan = &running.back();
      active.job.attempt_seconds = 1000;
      active.job.steps_left = job.steps_left;
      active.job.step_seconds = 1;
      active.job.saved = true;
      started.insert(job.id);
    }
    std::erase_if(snapshot.queue, [&](const auto& job) { return started.contains(job.id); });
  }

  const bool mixed;
  int64_t all_gpus = 0;
  coordinator::SchedulerSnapshot snapshot;
  std::map<int64_t, JobSpec> specs;  ///< By ranks.
  std::deque<Plan> running;
  int plans = 0;
};

/// A pass over an idle cluster, which starts what fits, and one after a job has ended.
void TimePasses(bool mixed) {
  LongQueue queue(100'000, mixed);
  queue.Apply(queue.Pass("full"));
  queue.Apply(queue.Pass("settled"));
  coordinator::ActiveJob ended = queue.snapshot.active.back();
  queue.snapshot.active.pop_back();
  for (size_t rank = 0; rank < ended.job.plan->rank_workers.size(); ++rank) {
    coordinator::FreeCapacity& free = queue.snapshot.free[ended.job.plan->rank_workers[rank]];
    free.cores += 1;
    free.memory_bytes = int64_t{1} << 40;
    free.devices.insert(ended.job.plan->rank_devices[rank]);
  }
  queue.Pass("incremental");
}

Json RowOf(const std::string& cluster, const std::string& policy, const Trace& trace,
           const Outcome& outcome) {
  const Summary summary = Summarize(trace, outcome);
  return {{"cluster", cluster},
          {"policy", policy},
          {"mean_completion_seconds", summary.mean_completion_seconds},
          {"p99_completion_seconds", summary.p99_completion_seconds},
          {"most_completion_seconds", summary.most_completion_seconds},
          {"mean_slowdown", summary.mean_slowdown},
          {"p99_slowdown", summary.p99_slowdown},
          {"max_slowdown", summary.max_slowdown},
          {"makespan_seconds", summary.makespan_seconds},
          {"preemptions", outcome.preemptions},
          {"resizes", outcome.resizes},
          {"lost_gpu_seconds", outcome.lost_gpu_seconds}};
}

int Fail(const Status& status) {
  std::fprintf(stderr, "scheduler_bench: %s\n", status.message().c_str());
  return 1;
}

int Main(int argc, char** argv) {
  CLI::App app("The scheduler on a virtual clock.");
  std::string trace_path, cluster;
  int64_t gpus = 0;
  double noise = 0.2;
  bool show_curve = false, time_passes = false;
  std::vector<std::string> policies = BaselineNames();
  policies.insert(policies.end(), {"weft_fixed", "weft"});
  coordinator::SchedulerRules rules;
  app.add_option("--trace", trace_path, "CSV with the columns vc,job,submit_s,duration_s,gpus");
  app.add_option("--cluster", cluster, "Value of vc");
  app.add_option("--gpus", gpus, "GPUs of the cluster");
  app.add_option("--noise", noise, "Standard deviation of the logarithm of predicted times");
  app.add_option("--policy", policies, "Policies; weft_fixed and weft are ours");
  app.add_option("--age-factor", rules.age_factor, "Of SchedulerRules");
  app.add_option("--preempt-factor", rules.preempt_factor, "Of SchedulerRules");
  app.add_option("--share-exponent", rules.share_exponent, "Of SchedulerRules");
  app.add_flag("--curve", show_curve, "Prints speeds by number of GPUs");
  app.add_flag("--passes", time_passes, "Times passes over 100,000 jobs on 10,000 GPUs");
  CLI11_PARSE(app, argc, argv);
  if (time_passes) {
    for (const bool mixed : {false, true}) TimePasses(mixed);
    return 0;
  }
  const Result<ScalingCurve> curve = PlannedCurve();
  if (!curve.ok()) return Fail(curve.status());
  if (show_curve) {
    Json speeds;
    for (const auto& [count, speed] : curve->speeds()) speeds[std::to_string(count)] = speed;
    std::printf("%s\n", speeds.dump().c_str());
    return 0;
  }
  Result<std::map<std::string, Trace>> traces = ReadTraces(trace_path);
  if (!traces.ok()) return Fail(traces.status());
  if (!traces->contains(cluster) || gpus < 1) {
    return Fail(InvalidError("--cluster must be one of " + trace_path + ", with --gpus"));
  }
  Trace& trace = traces->at(cluster);
  AddNoise(trace, noise, 1);
  std::erase_if(trace, [&](const TraceJob& job) { return job.gpus > gpus; });
  for (const std::string& policy : policies) {
    const bool ours = policy.starts_with("weft");
    const Outcome outcome = ours ? SimulateOurs(trace, gpus, *curve, policy == "weft", rules)
                                 : SimulateBaseline(policy, trace, gpus, *curve);
    std::printf("%s\n", RowOf(cluster, policy, trace, outcome).dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  return weft::bench::Main(argc, argv);
}
