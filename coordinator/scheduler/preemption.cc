#include "coordinator/scheduler/preemption.h"

#include <algorithm>
#include <tuple>

namespace weft::coordinator {
namespace {

std::string Reasoned(Claim claim, const Turn& job, const Turn& victim, const QueueTree& held) {
  switch (claim) {
    case Claim::kPriority:
      return "has priority " + std::to_string(job.priority) + ", over " +
             std::to_string(victim.priority);
    case Claim::kQuota:
      return "takes back the quota of queue " + held.name(job.queue);
    case Claim::kFairShare:
      return "takes the fair share of queue " + held.name(job.queue);
    case Claim::kShorter:
      return "has much less left to do";
    case Claim::kNone:
      break;
  }
  return "";
}

/// A running job with what it loses for each GPU, or core, that another one gets from it.
struct Priced {
  double price = 0;
  const RankedActive* active = nullptr;
};

/// In the order in which they are asked to give way to a job that wants `need` GPUs, or cores. What
/// a job frees beyond these helps nobody, so a wide one is dear for a narrow one.
std::vector<Priced> CheapestFirst(std::span<const RankedActive> active, int64_t need) {
  std::vector<Priced> priced;
  priced.reserve(active.size());
  for (const RankedActive& victim : active) {
    const double times =
        static_cast<double>(ComputeOf(*victim.job->job.plan)) / static_cast<double>(need);
    priced.push_back({victim.lost_seconds * std::max(times, 1.0), &victim});
  }
  std::stable_sort(priced.begin(), priced.end(), [](const Priced& a, const Priced& b) {
    return std::tie(a.active->turn.priority, a.price) < std::tie(b.active->turn.priority, b.price);
  });
  return priced;
}

}  // namespace

double LostSeconds(const ActiveJob& job, const RestartRules& rules) {
  return job.unsaved_seconds + RestartSeconds(job.job, rules);
}

Claim ClaimOf(const Turn& job, double wait_seconds, const RankedActive& victim,
              const QueueTree& held, const SchedulerRules& rules) {
  const ActiveJob& active = *victim.job;
  if (!active.may_stop || active.stopping || !active.preemptible) return Claim::kNone;
  const Turn& other = victim.turn;
  // Quotas and priorities together may go in a circle of jobs: each of them trains in between.
  const bool settled = active.job.attempt_seconds + victim.in_seconds >= rules.protected_seconds;
  if (active.preemptions > 0 && !settled) return Claim::kNone;
  if (held.MayReclaim(job.queue, job.amount, other.queue)) return Claim::kQuota;
  if (job.priority > other.priority && held.IsBorrower(other.queue, job.queue, job.amount)) {
    return Claim::kPriority;
  }
  // What follows saves time, and is worth it only where it does.
  if (job.priority < other.priority || active.preemptions >= rules.most_preemptions || !settled ||
      wait_seconds <= RestartSeconds(active.job, rules.scale_up.restart)) {
    return Claim::kNone;
  }
  if (held.IsFairerWithout(job.queue, job.amount, other.queue, other.amount)) {
    return Claim::kFairShare;
  }
  const bool shorter = rules.preempt_factor > 0 && job.queue == other.queue &&
                       job.priority == other.priority && job.at < other.at &&
                       job.work * rules.preempt_factor <= other.work;
  return shorter ? Claim::kShorter : Claim::kNone;
}

void SortByLoss(std::vector<RankedActive>& active) {
  std::stable_sort(active.begin(), active.end(), [](const RankedActive& a, const RankedActive& b) {
    return std::tie(a.turn.priority, a.lost_seconds, b.turn.work) <
           std::tie(b.turn.priority, b.lost_seconds, a.turn.work);
  });
}

std::optional<Displacement> FindVictims(const RankedJob& job, const Plan& wanted,
                                        double wait_seconds, std::span<const RankedActive> active,
                                        const CapacityPool& pool, const QueueTree& held,
                                        const SchedulerRules& rules) {
  const ComputeAmount need = AmountOf(wanted);
  Turn turn = job.turn;
  turn.amount = need;
  const auto claims = [&](const RankedActive& victim) {
    return OnDevices(*victim.job->job.plan) == OnDevices(wanted) &&
           ClaimOf(turn, wait_seconds, victim, held, rules) != Claim::kNone;
  };
  // Most jobs may displace nobody: that is found out before anything is sorted.
  if (std::none_of(active.begin(), active.end(), claims)) return std::nullopt;
  // Counts first, which costs little and is often not enough.
  QueueTree left = held;
  ComputeAmount total = pool.total();
  Displacement found;
  const auto enough = [&] { return total.gpus >= need.gpus && total.cores >= need.cores; };
  std::optional<CapacityPool> freed;
  const int64_t compute = std::max<int64_t>(ComputeOf(wanted), 1);
  for (const Priced& priced : CheapestFirst(active, compute)) {
    const RankedActive& victim = *priced.active;
    const Plan& plan = *victim.job->job.plan;
    if (OnDevices(plan) != OnDevices(wanted)) continue;
    const Claim claim = ClaimOf(turn, wait_seconds, victim, left, rules);
    if (claim == Claim::kNone) continue;
    found.victims.push_back(&victim);
    found.reasons.push_back(Reasoned(claim, turn, victim.turn, held));
    left.Give(victim.turn.queue, victim.turn.amount);
    total += AmountOf(plan);
    if (!enough()) continue;
    if (!freed) {
      freed.emplace(pool);
      for (const RankedActive* earlier : found.victims) freed->Release(*earlier->job->job.plan);
    } else {
      freed->Release(plan);
    }
    if (!freed->Place(wanted)) continue;
    // Without those that turned out to be spare, the dearest first.
    for (size_t i = found.victims.size(); i-- > 0;) {
      freed->Take(*found.victims[i]->job->job.plan);
      if (freed->Place(wanted)) {
        found.victims.erase(found.victims.begin() + static_cast<ptrdiff_t>(i));
        found.reasons.erase(found.reasons.begin() + static_cast<ptrdiff_t>(i));
      } else {
        freed->Release(*found.victims[i]->job->job.plan);
      }
    }
    found.plan = *freed->Place(wanted);
    return found;
  }
  return std::nullopt;
}

}  // namespace weft::coordinator
