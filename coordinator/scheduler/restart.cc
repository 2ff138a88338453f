#include "coordinator/scheduler/restart.h"

#include <algorithm>

#include "common/spec/local_steps.h"
#include "coordinator/scheduler/best_plan.h"

namespace weft::coordinator {

void AttemptHistory::Add(const AttemptRecord& attempt) {
  const bool failed = attempt.reason != Reason::kReplanned && attempt.reason != Reason::kDrained &&
                      attempt.reason != Reason::kCompleted &&
                      attempt.reason != Reason::kCancelledByUser;
  if (replanned && failed) ++undone;
  most_compute = std::max(most_compute, ComputeOf(attempt.plan));
  ran_out_of_memory = ran_out_of_memory || attempt.reason == Reason::kOutOfMemory;
  replanned = attempt.reason == Reason::kReplanned;
}

int64_t ComputeOf(const Plan& plan) {
  const int64_t ranks = std::ssize(plan.rank_workers);
  return OnDevices(plan) ? ranks : ranks * plan.threads_per_rank;
}

double RestartSeconds(const RunningJob& job, const RestartRules& rules) {
  return 2 * job.start_seconds.value_or(rules.assumed_start_seconds);
}

bool PaysForRestart(const RunningJob& job, double gain, const RestartRules& rules) {
  // What the round under way has done is lost.
  const TrainSpec& train = job.spec->train;
  const double round = TimesRounds(train)
                           ? train.local_round_seconds / std::max(job.step_seconds, 1e-9)
                           : static_cast<double>(train.local_steps);
  const double steps = static_cast<double>(job.steps_left) - round;
  const double saved = std::max(steps, 0.0) * job.step_seconds * (1 - 1 / gain);
  return saved >= rules.least_payback * RestartSeconds(job, rules);
}

}  // namespace weft::coordinator
