// Ranks that hold up all others: who they are, and how a job goes on without them.
#include <algorithm>

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Each heartbeat of each worker could show it, and jobs may have thousands.
constexpr std::chrono::seconds kLookEvery(1);

}  // namespace

void Service::CheckStraggler(const std::string& job_id) {
  const auto it = live_.find(job_id);
  if (it == live_.end() || it->second->current.job.state != JobState::kRunning) return;
  LiveJob& live = *it->second;
  // Peers of any speed are welcome where they come and go.
  if (live.current.attempt->membership > 0) return;
  if (clock_.Monotonic() < live.straggler_from) return;
  live.straggler_from = clock_.Monotonic() + kLookEvery;
  const AttemptRecord& attempt = *live.current.attempt;
  std::vector<RankPace> paces;
  for (const auto& [worker_id, track] : live.placements) {
    for (RankPace pace : track.paces) {
      pace.worker_id = worker_id;
      paces.push_back(std::move(pace));
    }
  }
  const std::optional<Straggler> before = live.straggler.named();
  const double now = ToSeconds(clock_.Monotonic());
  const std::optional<Straggler> found =
      live.straggler.See(attempt.plan.mesh, paces, now, options_.straggler);
  const std::optional<Straggler>& named = live.straggler.named();
  if (before && (!named || named->worker_id != before->worker_id)) {
    metrics_.SetStraggler(job_id, before->worker_id, 0);
  }
  if (named) metrics_.SetStraggler(job_id, named->worker_id, named->ratio);
  if (before.has_value() != named.has_value() || found) {
    SetOverlay(job_id, [&](Overlay& overlay) { overlay.straggler = named ? named->Text() : ""; });
    job_changes_.Notify(job_id);
  }
  if (!found) return;
  WEFT_LOG_WARNING << "job " << job_id << ", attempt " << attempt.epoch << ": " << found->Text();
  Transaction change;
  change.events.push_back(
      {job_id, attempt.epoch, clock_.UnixSeconds(), "straggler", found->Text()});
  store_.Commit(std::move(change), [this](const Result<CommitResult>& result) {
    if (!result.ok()) metrics_.StoreFailed();
  });
  Blame(found->worker_id, job_id, Reason::kMachineUnhealthy);
  if (options_.straggler_action == StragglerAction::kMove) MoveAway(job_id, live, *found);
}

void Service::ForgetStraggler(LiveJob& live) {
  const std::string& job_id = live.current.job.id;
  if (const std::optional<Straggler>& named = live.straggler.named()) {
    metrics_.SetStraggler(job_id, named->worker_id, 0);
    SetOverlay(job_id, [](Overlay& overlay) { overlay.straggler.clear(); });
  }
  live.straggler = {};
}

void Service::MoveAway(const std::string& job_id, LiveJob& live, const Straggler& straggler) {
  if (live.busy) return;
  SchedulerSnapshot snapshot = TakeSnapshot(job_id);
  std::erase_if(snapshot.cluster.workers, [&](const WorkerProfile& worker) {
    return worker.worker_id == straggler.worker_id;
  });
  snapshot.free.erase(straggler.worker_id);
  const std::optional<Plan> elsewhere =
      CapacityPool(snapshot.cluster, snapshot.free, snapshot.links)
          .Place(live.current.attempt->plan);
  if (!elsewhere) return;
  Replan(job_id, {*elsewhere, straggler.Text() + "; it goes on without that worker"},
         [](LiveJob&) {});
}

}  // namespace weft::coordinator
