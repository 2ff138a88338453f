#include "coordinator/recovery/ledger.h"

#include <algorithm>

namespace weft::coordinator {

AttemptTimes TimesOfNext(const AttemptRecord* last, const Progress& progress) {
  AttemptTimes times;
  times.step = progress.checkpoint_step.value_or(0);
  times.skipped_steps = progress.skipped_steps;
  if (last != nullptr) times.done_before = std::max(last->times.done_before, last->last_step);
  return times;
}

void SeeStep(const StepSighting& seen, AttemptRecord& attempt) {
  AttemptTimes& times = attempt.times;
  const bool first = times.step_at == 0;
  if (seen.step <= 0) return;
  if (!first && seen.step == times.step) {
    // The save with which an attempt ends follows its last step.
    times.checkpoint_seconds = std::max(times.checkpoint_seconds, seen.checkpoint_seconds);
    return;
  }
  if (first) {
    // The report of the first step may have come before; what it says is when that step ended.
    const double ended = std::min(seen.at, times.training_at.value_or(seen.at));
    const double began = std::clamp(ended - seen.step_seconds, attempt.started_at,
                                    std::max(attempt.started_at, seen.at));
    times.training_at = times.step_at = began;
    times.step = std::min(times.step, seen.step - 1);
  }
  const double others = (seen.checkpoint_seconds - times.checkpoint_seconds) +
                        (seen.evaluation_seconds - times.evaluation_seconds);
  const double in_steps = std::max(0.0, seen.at - times.step_at - std::max(0.0, others));
  // What steps waited for is neither useful nor rework. A straggler that waits for data is late for
  // that reason, and not a second time.
  const double waited = std::clamp(seen.data_wait_seconds - times.data_wait_seconds, 0.0, in_steps);
  const auto made = static_cast<double>(std::max<int64_t>(seen.step - times.step, 0));
  const double held_up = std::clamp(made * seen.excess_seconds - waited, 0.0, in_steps - waited);
  const double worked = in_steps - waited - held_up;
  if (seen.step > times.step) {
    const int64_t steps = seen.step - times.step;
    const int64_t again = std::clamp<int64_t>(times.done_before - times.step, 0, steps);
    const int64_t dropped =
        std::clamp<int64_t>(seen.skipped_steps - times.skipped_steps, 0, steps - again);
    times.rework_seconds +=
        worked * static_cast<double>(again + dropped) / static_cast<double>(steps);
  } else {
    times.done_before = std::max(times.done_before, times.step);  // it went back
    times.rework_seconds += worked;
  }
  times.step = seen.step;
  times.step_at = std::max(times.step_at, seen.at);
  times.skipped_steps = seen.skipped_steps;
  times.checkpoint_seconds = std::max(times.checkpoint_seconds, seen.checkpoint_seconds);
  times.evaluation_seconds = std::max(times.evaluation_seconds, seen.evaluation_seconds);
  times.data_wait_seconds = std::max(times.data_wait_seconds, seen.data_wait_seconds);
  times.straggler_seconds += held_up;
}

void AddAttempt(const AttemptRecord& attempt, double until, Ledger& ledger) {
  const AttemptTimes& times = attempt.times;
  const double start = attempt.started_at;
  const double end = std::max(start, attempt.ended_at.value_or(until));
  const double failed = std::clamp(times.failed_at.value_or(end), start, end);
  const double training = std::clamp(times.training_at.value_or(failed), start, failed);
  ledger.starting_seconds += training - start;
  // Whatever was done after the newest step that was reported is lost.
  const bool lost = times.failed_at && times.training_at;
  const double lived = lost ? std::clamp(times.step_at, training, failed) : failed;
  ledger.recovery_seconds += end - lived;
  const double span = lived - training;
  const double checkpoint = std::clamp(times.checkpoint_seconds, 0.0, span);
  double left = span - checkpoint;
  const auto take = [&left](double seconds) {
    const double taken = std::clamp(seconds, 0.0, left);
    left -= taken;
    return taken;
  };
  ledger.checkpoint_seconds += checkpoint;
  ledger.data_wait_seconds += take(times.data_wait_seconds);
  ledger.straggler_seconds += take(times.straggler_seconds);
  ledger.rework_seconds += take(times.rework_seconds);
  ledger.useful_seconds += left;
}

void LedgerAccount::Close(const AttemptRecord& attempt) {
  const double ended_at = attempt.ended_at.value_or(attempt.started_at);
  ended_ = Until(&attempt, ended_at);
  waits_from_ = std::max(attempt.started_at, ended_at);
}

Ledger LedgerAccount::Until(const AttemptRecord* running, double until) const {
  Ledger ledger = ended_;
  const double waited_until = running != nullptr ? running->started_at : until;
  ledger.queued_seconds += std::max(0.0, waited_until - waits_from_);
  if (running != nullptr) AddAttempt(*running, until, ledger);
  return ledger;
}

Ledger LedgerOf(const JobRecord& job, std::span<const AttemptRecord> attempts, double now) {
  LedgerAccount account(job.submitted_at);
  const AttemptRecord* running = nullptr;
  for (const AttemptRecord& attempt : attempts) {
    if (attempt.ended_at) {
      account.Close(attempt);
    } else {
      running = &attempt;
    }
  }
  return account.Until(running, job.ended_at.value_or(now));
}

}  // namespace weft::coordinator
