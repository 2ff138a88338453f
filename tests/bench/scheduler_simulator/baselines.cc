#include "tests/bench/scheduler_simulator/baselines.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>

namespace weft::bench {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kGpuHour = 3600;
/// A resize costs a restart, so one that changes little is not worth it.
constexpr double kLeastResizeGap = 600;
/// Times as fast on the next size, for srsf_elastic to take it.
constexpr double kLeastScaling = 1.5;

struct Job {
  const TraceJob* trace = nullptr;
  size_t index = 0;
  double left = 0;      ///< Seconds on its own number of GPUs.
  double restart = 0;   ///< Seconds of the restart that are left.
  int64_t held = 0;     ///< GPUs; 0: it waits.
  double attained = 0;  ///< GPU seconds.
  double resized = 0;   ///< When it had its present GPUs.
  bool ran = false;

  double predicted() const { return left * trace->prediction_factor; }
};

/// The state of one simulation; policies choose what jobs hold.
class Baseline {
 public:
  Baseline(const Trace& trace, int64_t gpus, const ScalingCurve& curve)
      : trace_(trace), gpus_(gpus), curve_(curve) {
    outcome_.completion_seconds.resize(trace.size());
  }

  Outcome Run(const std::string& policy) {
    size_t next = 0;
    while (next < trace_.size() || !jobs_.empty()) {
      double then = next < trace_.size() ? trace_[next].submit_seconds : kNever;
      for (const Job& job : jobs_) then = std::min(then, NextEvent(job, policy));
      if (then == kNever) {
        std::fprintf(stderr, "%s: jobs wait for ever\n", policy.c_str());
        std::exit(1);
      }
      Advance(then);
      for (; next < trace_.size() && trace_[next].submit_seconds <= now_; ++next) {
        jobs_.push_back({&trace_[next], next, trace_[next].duration_seconds});
      }
      Decide(policy);
    }
    outcome_.makespan_seconds = now_ - trace_.front().submit_seconds;
    return std::move(outcome_);
  }

 private:
  double Speed(const Job& job) const {
    if (job.held == job.trace->gpus) return 1;
    return curve_.Speed(job.held) / curve_.Speed(job.trace->gpus);
  }

  double NextEvent(const Job& job, const std::string& policy) const {
    if (job.held == 0) return kNever;
    double then = now_ + job.restart + job.left / Speed(job);
    if (policy.starts_with("las")) {
      for (const double limit : Limits(policy)) {
        const double gap = (limit - job.attained) / static_cast<double>(job.held);
        if (gap > 1e-6) then = std::min(then, now_ + gap);
      }
    }
    return then;
  }

  void Advance(double then) {
    const double seconds = then - now_;
    now_ = then;
    for (Job& job : jobs_) {
      if (job.held == 0) continue;
      const double restart = std::min(job.restart, seconds);
      job.restart -= restart;
      job.left -= (seconds - restart) * Speed(job);
      job.attained += seconds * static_cast<double>(job.held);
    }
    std::erase_if(jobs_, [this](const Job& job) {
      if (job.held == 0 || job.left > 1e-6) return false;
      outcome_.completion_seconds[job.index] = now_ - job.trace->submit_seconds;
      return true;
    });
  }

  static std::vector<double> Limits(const std::string& policy) {
    if (policy == "las_2q") return {kGpuHour};
    return {kGpuHour, 10 * kGpuHour, 100 * kGpuHour};
  }

  int64_t Free() const {
    int64_t free = gpus_;
    for (const Job& job : jobs_) free -= job.held;
    return free;
  }

  void Give(Job& job, int64_t gpus) {
    if (job.held == gpus) return;
    if (gpus == 0) {
      ++outcome_.preemptions;
    } else if (job.ran) {
      if (job.held > 0) ++outcome_.resizes;
      job.restart = kRestartSeconds;
      outcome_.lost_gpu_seconds += kRestartSeconds * static_cast<double>(gpus);
    }
    job.held = gpus;
    job.resized = now_;
    job.ran = true;
  }

  std::vector<Job*> Waiting() {
    std::vector<Job*> waiting;
    for (Job& job : jobs_) {
      if (job.held == 0) waiting.push_back(&job);
    }
    return waiting;
  }

  /// Those that fit, in that order.
  template <class Key>
  void StartThatFit(Key key) {
    std::vector<Job*> waiting = Waiting();
    std::stable_sort(waiting.begin(), waiting.end(),
                     [&](const Job* a, const Job* b) { return key(*a) < key(*b); });
    int64_t free = Free();
    for (Job* job : waiting) {
      if (job->trace->gpus > free) continue;
      free -= job->trace->gpus;
      Give(*job, job->trace->gpus);
    }
  }

  /// All jobs in that order get what they want; who gets nothing is preempted.
  template <class Key>
  void Reassign(Key key) {
    std::vector<Job*> all;
    for (Job& job : jobs_) all.push_back(&job);
    std::stable_sort(all.begin(), all.end(),
                     [&](const Job* a, const Job* b) { return key(*a) < key(*b); });
    int64_t free = gpus_;
    for (Job* job : all) {
      const bool fits = job->trace->gpus <= free;
      if (fits) free -= job->trace->gpus;
      Give(*job, fits ? job->trace->gpus : 0);
    }
  }

  void Decide(const std::string& policy) {
    if (policy == "fifo") {
      int64_t free = Free();
      for (Job* job : Waiting()) {
        if (job->trace->gpus > free) break;
        free -= job->trace->gpus;
        Give(*job, job->trace->gpus);
      }
    } else if (policy == "fit_first") {
      StartThatFit([](const Job&) { return 0; });
    } else if (policy == "easy") {
      Easy();
    } else if (policy == "sjf") {
      StartThatFit([](const Job& job) { return job.predicted(); });
    } else if (policy == "srtf") {
      Reassign([](const Job& job) { return job.predicted(); });
    } else if (policy == "srsf") {
      Reassign(
          [](const Job& job) { return job.predicted() * static_cast<double>(job.trace->gpus); });
    } else if (policy == "srsf_elastic") {
      ElasticSrsf();
    } else if (policy.starts_with("las")) {
      const std::vector<double> limits = Limits(policy);
      Reassign([&](const Job& job) {
        return std::count_if(limits.begin(), limits.end(),
                             [&](double limit) { return job.attained >= limit - 1e-3; });
      });
    } else {
      Rubick();
    }
  }

  void Easy() {
    int64_t free = Free();
    std::vector<Job*> waiting = Waiting();
    size_t next = 0;
    for (; next < waiting.size() && waiting[next]->trace->gpus <= free; ++next) {
      free -= waiting[next]->trace->gpus;
      Give(*waiting[next], waiting[next]->trace->gpus);
    }
    if (next == waiting.size()) return;
    std::vector<std::pair<double, int64_t>> ends;
    for (const Job& job : jobs_) {
      if (job.held > 0) ends.emplace_back(job.predicted(), job.held);
    }
    std::sort(ends.begin(), ends.end());
    int64_t then_free = free;
    double then = 0;
    for (const auto& [end, gpus] : ends) {
      then_free += gpus;
      then = end;
      if (then_free >= waiting[next]->trace->gpus) break;
    }
    int64_t spare = then_free - waiting[next]->trace->gpus;
    for (++next; next < waiting.size(); ++next) {
      Job& job = *waiting[next];
      const bool in_time = job.predicted() <= then;
      if (job.trace->gpus > free || (!in_time && job.trace->gpus > spare)) continue;
      free -= job.trace->gpus;
      if (!in_time) spare -= job.trace->gpus;
      Give(job, job.trace->gpus);
    }
  }

  void Rubick() {
    struct Step {
      double gain;  ///< Of speed, over that on its own number of GPUs, for each GPU more.
      size_t job;
      size_t size;  ///< Index of the size that it leads to.
      bool operator<(const Step& other) const {
        return std::tie(gain, other.job) < std::tie(other.gain, job);
      }
    };
    std::vector<std::vector<int64_t>> sizes;
    std::vector<int64_t> target(jobs_.size(), 0);
    std::priority_queue<Step> steps;
    const auto offer = [&](size_t i, size_t size) {
      if (size >= sizes[i].size()) return;
      const double own = curve_.Speed(jobs_[i].trace->gpus);
      const double more = curve_.Speed(sizes[i][size]) - curve_.Speed(sizes[i][size - 1]);
      steps.push({more / own / static_cast<double>(sizes[i][size] - sizes[i][size - 1]), i, size});
    };
    int64_t free = gpus_;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      sizes.push_back(ElasticSizes(jobs_[i].trace->gpus, gpus_));
      if (sizes[i].front() > free) continue;
      target[i] = sizes[i].front();
      free -= target[i];
      offer(i, 1);
    }
    while (!steps.empty() && free > 0) {
      const Step step = steps.top();
      steps.pop();
      const int64_t more = sizes[step.job][step.size] - target[step.job];
      if (more > free) continue;
      target[step.job] += more;
      free -= more;
      offer(step.job, step.size + 1);
    }
    MoveTo(target);
  }

  void ElasticSrsf() {
    std::vector<size_t> order(jobs_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto gpu_time = [this](size_t i) {
      return jobs_[i].predicted() * static_cast<double>(jobs_[i].trace->gpus);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return gpu_time(a) < gpu_time(b); });
    std::vector<int64_t> target(jobs_.size(), 0);
    int64_t free = gpus_;
    for (const size_t i : order) {
      for (const int64_t size : ElasticSizes(jobs_[i].trace->gpus, gpus_)) {
        const bool pays =
            target[i] == 0 || curve_.Speed(size) >= kLeastScaling * curve_.Speed(target[i]);
        if (size > free || !pays) break;
        target[i] = size;
      }
      free -= target[i];
    }
    MoveTo(target);
  }

  /// Gives each job as many GPUs as `target` says, by index.
  void MoveTo(const std::vector<int64_t>& target) {
    // Room for those that wait is made at once; growing waits for a while, since it is a restart.
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (target[i] < jobs_[i].held) Give(jobs_[i], target[i]);
    }
    int64_t free = Free();
    for (const bool starts : {true, false}) {
      for (size_t i = 0; i < jobs_.size(); ++i) {
        Job& job = jobs_[i];
        const int64_t more = target[i] - job.held;
        if (more <= 0 || more > free || starts != (job.held == 0)) continue;
        if (!starts && now_ - job.resized < kLeastResizeGap) continue;
        Give(job, target[i]);
        free -= more;
      }
    }
  }

  const Trace& trace_;
  int64_t gpus_;
  const ScalingCurve& curve_;
  double now_ = 0;
  std::vector<Job> jobs_;  ///< In the order of submission.
  Outcome outcome_;
};

}  // namespace

const std::vector<std::string>& BaselineNames() {
  static const std::vector<std::string> names = {"fifo",   "fit_first",   "easy",   "sjf",
                                                 "srtf",   "srsf",        "las_2q", "las_4q",
                                                 "rubick", "srsf_elastic"};
  return names;
}

Outcome SimulateBaseline(const std::string& policy, const Trace& trace, int64_t gpus,
                         const ScalingCurve& curve) {
  return Baseline(trace, gpus, curve).Run(policy);
}

}  // namespace weft::bench
