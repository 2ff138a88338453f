// How far jobs are, as their workers say with each heartbeat.
#include <algorithm>
#include <optional>

#include "coordinator/service/service.h"

namespace weft::coordinator {

void Service::SeeProgress(LiveJob& live, const RunningAttempt& item, bool of_rank_0) {
  const int64_t last_step = live.progress.step;
  const int64_t rollbacks = live.progress.rollbacks;
  // Only the worker of rank 0 has the numbers of the whole job; the others lag or say nothing.
  if (item.progress.step <= 0 || (!of_rank_0 && item.progress.step <= last_step)) return;
  AttemptRecord& attempt = *live.current.attempt;
  const std::optional<int64_t> saved = live.progress.checkpoint_step;
  live.progress = item.progress;
  // Rank 0 knows what the attempt goes on from or has saved since. That is less than before where
  // newer checkpoints were damaged. Ranks that come and go know what they themselves saved.
  const bool knows = of_rank_0 && item.progress.checkpoint_step && attempt.membership == 0;
  if (!knows) live.progress.checkpoint_step = std::max(saved, item.progress.checkpoint_step);
  if (!of_rank_0) live.progress.rollbacks = rollbacks;
  live.steps.See(item.progress.step, item.progress.step_seconds, clock_.Monotonic());
  if (!attempt.first_step) attempt.first_step = item.progress.step;
  SetOverlay(item.job_id, [&](Overlay& overlay) { overlay.progress = live.progress; });
  job_changes_.Notify(item.job_id);
  if (live.progress.rollbacks > rollbacks) NoteRollback(live, item.epoch, last_step);
}

void Service::NoteRollback(const LiveJob& live, int64_t epoch, int64_t last_step) {
  const std::string text = "rollback " + std::to_string(live.progress.rollbacks) +
                           " of the training, after step " + std::to_string(last_step) +
                           " was reported; its log says why, and to which step";
  Change(
      live.current.job.id,
      [this, epoch, text](const JobCase& current) -> Result<Transaction> {
        Transaction change;
        // With it the number of rollbacks is stored, so that a coordinator that is started again
        // does not note them a second time.
        change.job = current.job;
        change.events.push_back({current.job.id, epoch, clock_.UnixSeconds(), "rollback", text});
        return change;
      },
      [](const Status&) {}, true);
}

}  // namespace weft::coordinator
