// Where the time of jobs goes: what heartbeats report of their steps, and the metric of all jobs.
#include <algorithm>

#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// The metric is at most so old.
constexpr std::chrono::seconds kCountEvery(5);

/// What is more in each class.
Ledger Difference(const Ledger& now, const Ledger& before) {
  return {now.queued_seconds - before.queued_seconds,
          now.starting_seconds - before.starting_seconds,
          now.useful_seconds - before.useful_seconds,
          now.rework_seconds - before.rework_seconds,
          now.checkpoint_seconds - before.checkpoint_seconds,
          now.recovery_seconds - before.recovery_seconds,
          now.data_wait_seconds - before.data_wait_seconds,
          now.straggler_seconds - before.straggler_seconds};
}

}  // namespace

void Service::SeeTimes(LiveJob& live, const RunningAttempt& item) {
  StepSighting seen{clock_.UnixSeconds(),       item.progress.step,
                    item.progress.step_seconds, item.progress.skipped_steps,
                    item.checkpoint_seconds,    item.evaluation_seconds};
  // All ranks waited for the one that waited longest.
  for (const auto& [worker_id, track] : live.placements) {
    seen.data_wait_seconds = std::max(seen.data_wait_seconds, track.data_wait_seconds);
  }
  if (const auto& named = live.straggler.named()) seen.excess_seconds = named->excess_seconds;
  SeeStep(seen, *live.current.attempt);
  ShowTimes(live);
}

void Service::ShowTimes(const LiveJob& live) {
  const AttemptRecord& attempt = *live.current.attempt;
  SetOverlay(attempt.job_id, [&](Overlay& overlay) {
    overlay.epoch = attempt.epoch;
    overlay.times = attempt.times;
  });
}

void Service::CountTimesLater() {
  NoteAwake();
  loop_.PostAfter(kCountEvery, [this] {
    for (auto& [id, live] : live_) CountTimes(*live);
    ShowSuspicions();
    CountTimesLater();
  });
}

void Service::CountTimes(LiveJob& live) {
  const JobRecord& job = live.current.job;
  const AttemptRecord* running =
      live.current.attempt && !live.current.attempt->ended_at ? &*live.current.attempt : nullptr;
  double until = job.ended_at.value_or(clock_.UnixSeconds());
  // Whether what follows the newest step is kept shows later, and a counter takes nothing back.
  if (running != nullptr && running->times.step_at > 0 && !running->times.failed_at) {
    until = running->times.step_at;
  }
  const Ledger now = live.account.Until(running, until);
  metrics_.JobTime(Difference(now, live.counted));
  live.counted = now;
}

}  // namespace weft::coordinator
