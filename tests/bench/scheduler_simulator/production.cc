#include "tests/bench/scheduler_simulator/production.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>

namespace weft::bench {
namespace {

using coordinator::ActiveJob;
using coordinator::QueuedJob;
using coordinator::Schedule;
using coordinator::SchedulerDecisions;
using coordinator::SchedulerSnapshot;

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Ranks save so often.
constexpr double kSaveSeconds = 1800;
/// A pass without an event, for what only time changes.
constexpr double kTickSeconds = 300;

struct Job {
  const TraceJob* trace = nullptr;
  size_t index = 0;
  std::string id;
  JobSpec spec;
  Plan plan;  ///< Of its present or last attempt.
  bool running = false;
  bool ran = false;
  bool promised = false;
  double left = 0;     ///< Seconds on its own number of GPUs.
  double restart = 0;  ///< Seconds of the restart that are left.
  double started = 0;  ///< Present attempt.
  int64_t preemptions = 0;
  std::optional<coordinator::JobSize> size;
};

class Production {
 public:
  Production(const Trace& trace, int64_t gpus, const ScalingCurve& curve,
             const ProductionOptions& options)
      : trace_(trace), gpus_(gpus), curve_(curve), options_(options) {
    outcome_.completion_seconds.resize(trace.size());
    for (int64_t first = 0; first < gpus; first += options.gpus_per_machine) {
      WorkerProfile worker;
      worker.worker_id = "m" + std::to_string(1000 + first / options.gpus_per_machine);
      worker.device = "cuda";
      worker.cores = 128;
      worker.memory_bytes = worker.memory_limit_bytes = int64_t{1} << 40;
      for (int64_t i = 0; i < std::min(options.gpus_per_machine, gpus - first); ++i) {
        DeviceSpec device;
        device.index = i;
        device.memory_bytes = device.memory_limit_bytes = int64_t{80} << 30;
        worker.devices.push_back(device);
      }
      cluster_.workers.push_back(worker);
    }
  }

  Outcome Run() {
    size_t next = 0;
    double tick = kNever;
    while (next < trace_.size() || !jobs_.empty()) {
      double then = next < trace_.size() ? trace_[next].submit_seconds : kNever;
      then = std::min(then, tick);
      for (const auto& [id, job] : jobs_) then = std::min(then, EndOf(*job));
      if (then == kNever) {
        std::fprintf(stderr, "jobs wait for ever\n");
        std::exit(1);
      }
      Advance(then);
      for (; next < trace_.size() && trace_[next].submit_seconds <= now_; ++next) Submit(next);
      // What is stopped is free at once, so that a pass can follow.
      for (int passes = 0; passes < 20 && Pass(); ++passes) {
      }
      tick = jobs_.empty() ? kNever : now_ + kTickSeconds;
    }
    outcome_.makespan_seconds = now_ - trace_.front().submit_seconds;
    return std::move(outcome_);
  }

 private:
  double Speed(const Job& job, int64_t gpus) const {
    return curve_.Speed(gpus) / curve_.Speed(job.trace->gpus);
  }
  static int64_t Gpus(const Plan& plan) { return std::ssize(plan.rank_workers); }

  double EndOf(const Job& job) const {
    if (!job.running) return kNever;
    return now_ + job.restart + job.left / Speed(job, Gpus(job.plan));
  }

  void Advance(double then) {
    const double seconds = then - now_;
    now_ = then;
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      Job& job = *it->second;
      if (job.running) {
        const double restart = std::min(job.restart, seconds);
        job.restart -= restart;
        job.left -= (seconds - restart) * Speed(job, Gpus(job.plan));
      }
      if (job.left > 1e-6) {
        ++it;
        continue;
      }
      outcome_.completion_seconds[job.index] = now_ - job.trace->submit_seconds;
      it = jobs_.erase(it);
    }
  }

  void Submit(size_t index) {
    auto job = std::make_unique<Job>();
    job->trace = &trace_[index];
    job->index = index;
    job->id = std::to_string(index);
    job->left = trace_[index].duration_seconds;
    job->spec.name = job->id;
    job->spec.resources.device = "cuda";
    if (options_.elastic) {
      const std::vector<int64_t> sizes = ElasticSizes(job->trace->gpus, gpus_);
      job->spec.resources.min_ranks = sizes.front();
      job->spec.resources.max_ranks = sizes.back();
    } else {
      job->spec.resources.ranks = job->trace->gpus;
    }
    jobs_.emplace(index, std::move(job));
  }

  /// The largest size that the job may have and that there are GPUs for.
  Result<PlanReport> PlanOf(const JobSpec& spec, const ClusterProfile& cluster) const {
    const Job& job = *jobs_.at(static_cast<size_t>(std::atoll(spec.name.c_str())));
    int64_t room = 0;
    for (const WorkerProfile& worker : cluster.workers) room += std::ssize(worker.devices);
    const ResourceSpec& resources = spec.resources;
    std::vector<int64_t> sizes = {resources.ranks};
    if (resources.ranks == 0) sizes = ElasticSizes(job.trace->gpus, gpus_);
    if (resources.max_ranks > 0) room = std::min(room, resources.max_ranks);
    int64_t ranks = 0;
    for (const int64_t size : sizes) {
      if (size <= room) ranks = size;
    }
    PlanReport report;
    PlanCandidate& candidate = report.candidates.emplace_back();
    if (ranks == 0) {
      candidate.reason = "there are too few GPUs";
      return report;
    }
    Plan& plan = candidate.plan;
    plan.device = "cuda";
    plan.mesh.data = ranks;
    plan.prediction.step_seconds = job.trace->prediction_factor / Speed(job, ranks);
    // On one machine where that holds it, the fullest such; else on the emptiest.
    std::vector<const WorkerProfile*> machines;
    for (const WorkerProfile& worker : cluster.workers) machines.push_back(&worker);
    std::stable_sort(machines.begin(), machines.end(), [&](const auto* a, const auto* b) {
      const bool holds_a = std::ssize(a->devices) >= ranks,
                 holds_b = std::ssize(b->devices) >= ranks;
      if (holds_a != holds_b) return holds_a;
      return holds_a ? a->devices.size() < b->devices.size()
                     : a->devices.size() > b->devices.size();
    });
    for (const WorkerProfile* worker : machines) {
      for (const DeviceSpec& device : worker->devices) {
        if (std::ssize(plan.rank_workers) == ranks) break;
        plan.rank_workers.push_back(worker->worker_id);
        plan.rank_devices.push_back(device.index);
      }
    }
    candidate.chosen = candidate.feasible = true;
    return report;
  }

  SchedulerSnapshot Snapshot() const {
    SchedulerSnapshot snapshot;
    snapshot.cluster = cluster_;
    snapshot.now = now_;
    snapshot.rules = options_.rules;
    for (const WorkerProfile& worker : cluster_.workers) {
      auto& free = snapshot.free[worker.worker_id];
      free = {worker.cores, worker.memory_limit_bytes, {}};
      for (const DeviceSpec& device : worker.devices) free.devices.insert(device.index);
    }
    for (const auto& [index, job] : jobs_) {
      const auto steps = static_cast<int64_t>(std::ceil(job->left));
      const double factor = job->trace->prediction_factor;
      if (job->running) {
        TakeCapacity(job->plan, snapshot.free);
        ActiveJob& active = snapshot.active.emplace_back();
        active.id = job->id;
        active.submitted_at = job->trace->submit_seconds;
        active.unsaved_seconds = std::fmod(now_ - job->started, kSaveSeconds);
        active.preemptions = job->preemptions;
        active.job.spec = &job->spec;
        active.job.plan = &job->plan;
        active.job.attempt_seconds = now_ - job->started;
        active.job.steps_left = steps;
        active.job.step_seconds = factor / Speed(*job, Gpus(job->plan));
        active.job.start_seconds = kRestartSeconds / 2;
        active.job.saved = true;
      } else {
        QueuedJob& queued = snapshot.queue.emplace_back();
        queued.id = job->id;
        queued.spec = &job->spec;
        queued.submitted_at = job->trace->submit_seconds;
        queued.steps_left = steps;
        queued.preemptions = job->preemptions;
        if (job->ran && !options_.elastic) queued.last_plan = &job->plan;
        queued.size = job->size;
        queued.promised = job->promised;
      }
    }
    return snapshot;
  }

  void Begin(Job& job, const Plan& plan) {
    job.plan = plan;
    job.restart = job.ran ? kRestartSeconds : 0;
    outcome_.lost_gpu_seconds += job.restart * static_cast<double>(Gpus(plan));
    job.running = job.ran = true;
    job.promised = false;
    job.started = now_;
  }

  /// Whether something was stopped.
  bool Pass() {
    const SchedulerSnapshot snapshot = Snapshot();
    if (snapshot.queue.empty() && !options_.elastic) return false;
    const SchedulerDecisions decisions =
        Schedule(snapshot, [this](const JobSpec& spec, const ClusterProfile& cluster) {
          return PlanOf(spec, cluster);
        });
    const auto job_of = [this](const std::string& id) -> Job& {
      return *jobs_.at(static_cast<size_t>(std::atoll(id.c_str())));
    };
    for (const auto& preemption : decisions.preemptions) {
      Job& job = job_of(preemption.job_id);
      job.running = false;
      ++job.preemptions;
      ++outcome_.preemptions;
      job_of(preemption.for_job).promised = true;
    }
    for (const auto& resize : decisions.resizes) {
      ++outcome_.resizes;
      if (!resize.for_job.empty()) job_of(resize.for_job).promised = true;
      Begin(job_of(resize.job_id), resize.change.plan);
    }
    for (const auto& start : decisions.starts) Begin(job_of(start.job_id), start.plan);
    for (const auto& [id, size] : decisions.sizes) job_of(id).size = size;
    return !decisions.preemptions.empty() || !decisions.resizes.empty();
  }

  const Trace& trace_;
  int64_t gpus_;
  const ScalingCurve& curve_;
  const ProductionOptions& options_;
  ClusterProfile cluster_;
  double now_ = 0;
  std::map<size_t, std::unique_ptr<Job>> jobs_;
  Outcome outcome_;
};

}  // namespace

Outcome SimulateProduction(const Trace& trace, int64_t gpus, const ScalingCurve& curve,
                           const ProductionOptions& options) {
  return Production(trace, gpus, curve, options).Run();
}

}  // namespace weft::bench
