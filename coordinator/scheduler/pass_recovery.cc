// Jobs that recover go on at once, on workers that are kept free for them.
#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/scheduler/pass.h"
#include "coordinator/scheduler/spares.h"

namespace weft::coordinator {

void SchedulingPass::StartRecovering(JobOrder& order) {
  std::vector<const RankedJob*> recovering;
  order.ForEach([&](const RankedJob& ranked) {
    if (ranked.job->recovers) recovering.push_back(&ranked);
  });
  std::stable_sort(
      recovering.begin(), recovering.end(), [](const RankedJob* a, const RankedJob* b) {
        return a->turn.priority != b->turn.priority ? a->turn.priority > b->turn.priority
                                                    : a->turn.at < b->turn.at;
      });
  for (const RankedJob* ranked : recovering) {
    if (Recover(*ranked)) recovered_.insert(ranked->job);
  }
}

bool SchedulingPass::Recover(const RankedJob& ranked) {
  const QueuedJob& job = *ranked.job;
  const size_t queue = ranked.turn.queue;
  // What cannot start now waits for its turn like others, which says why.
  if (job.last_plan == nullptr || holding_.LimitedBy(queue, ranked.turn.amount) != nullptr) {
    return false;
  }
  Candidate candidate{ranked, job, WithDevice(*job.spec, job.last_plan, snapshot_.cluster)};
  if (!KeepWithinLimit(candidate)) return false;
  candidate.beyond_share = {candidate.spec.resources.max_ranks, candidate.most_cores};
  KeepToShare(candidate);
  Result<Plan> chosen = Choose(candidate);
  if (!chosen.ok() || !free_.Fits(*chosen) || !EndsEarlier(candidate, *chosen)) return false;
  if (holding_.LimitedBy(queue, AmountOf(*chosen)) != nullptr) return false;
  Start(ranked, *std::move(chosen));
  return true;
}

void SchedulingPass::LeaveSpares() {
  const int64_t spares = snapshot_.rules.spare_workers;
  free_ = CapacityPool(snapshot_.cluster, WithoutSpares(snapshot_.cluster, free_.ToMap(), spares),
                       snapshot_.links);
  outlook_.pool = SoonFree(free_, snapshot_.active);
  part_.reset();
  forecast_.emplace(outlook_.pool.total(), outlook_.releases.Amounts());
}

SchedulingPass::Whole& SchedulingPass::WholeFor(const QueuedJob& job) {
  const int64_t spares = snapshot_.rules.spare_workers;
  if (spares == 0 || job.recovers) {
    if (!whole_) whole_.emplace(Whole{AllFree(snapshot_.cluster), std::nullopt, {}, {}});
    return *whole_;
  }
  if (!without_spares_) {
    FreeMap rest = WithoutSpares(snapshot_.cluster, AllFree(snapshot_.cluster), spares);
    ClusterProfile part = FreePart(snapshot_.cluster, rest);
    without_spares_.emplace(Whole{std::move(rest), std::move(part), {}, {}});
  }
  return *without_spares_;
}

}  // namespace weft::coordinator
