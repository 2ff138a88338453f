#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>

#include "coordinator/scheduler/pass.h"

namespace weft::coordinator {
namespace {

/// Plans for fewer ranks that one pass asks for.
constexpr int kShrinking = 16;
/// Running jobs that one pass looks for a larger plan for.
constexpr int kGrowing = 32;
/// Jobs that wait of which a pass says what would start them.
constexpr int kAdvised = 16;

std::string Names(const std::vector<std::string>& ids) {
  std::string text;
  for (const std::string& id : ids) text += (text.empty() ? "" : ", ") + id;
  return text;
}

}  // namespace

void SchedulingPass::AwaitRoom(const Candidate& candidate, const Plan& wanted) {
  const RankedJob& ranked = candidate.ranked;
  if (WaitsForLimit(ranked, AmountOf(wanted))) return;
  if (TakeFromStopping(candidate, wanted)) return;
  const bool first = held_back_by_.empty();
  if (displacing_ < kDisplacing) {
    ++displacing_;
    const double wait = outlook_.releases.SecondsUntil(AmountOf(wanted), outlook_.pool.total());
    if (TakeByShrinking(candidate, wanted, wait)) return;
    if (TakeByPreempting(candidate, wanted, wait)) return;
  }
  if (!first) {
    WaitBehind(ranked);
  } else {
    held_back_by_ = candidate.job.id;
    held_by_planning_ = false;
    WaitDecision& wait =
        Wait(ranked, Reason::kWaitingForCapacity,
             "other jobs hold the workers it needs (" + std::to_string(wanted.rank_workers.size()) +
                 " ranks x " + std::to_string(wanted.threads_per_rank) +
                 (OnDevices(wanted) ? " cores and a GPU)" : " cores)"));
    forecast_->Start(AmountOf(wanted), SecondsBy(ranked, wanted));
    if (std::optional<Reservation> later = outlook_.releases.Reserve(wanted, outlook_.pool)) {
      wait.blocked_by = later->blocked_by;
      SetStart(wait, later->seconds);
      reserved_turn_ = ranked.turn;
      reserved_turn_.amount = AmountOf(wanted);
      reservation_ = ReserveFor(wanted, outlook_);
    }
  }
  if (advised_++ < kAdvised) Advise(candidate, wanted, decisions_.waits.back());
}

bool SchedulingPass::Promise(const Candidate& candidate, const Plan& plan, Outlook outlook) {
  const RankedJob& ranked = candidate.ranked;
  plans_.push_back(plan);
  const double restart = snapshot_.rules.growth.restart.assumed_start_seconds;
  const double seconds = SecondsBy(ranked, plan);
  outlook.pool.Take(plan);
  outlook.releases.Add(seconds > 0 ? restart + seconds : std::numeric_limits<double>::infinity(),
                       plans_.back(), candidate.job.id);
  if (reservation_) {
    std::optional<Reservation> kept = ReserveFor(reservation_->plan, outlook);
    if (!kept || kept->seconds > reservation_->seconds) {
      plans_.pop_back();
      return false;
    }
    reservation_ = std::move(kept);
  } else if (!held_back_by_.empty()) {
    plans_.pop_back();
    return false;
  }
  outlook_ = std::move(outlook);
  free_.Take(plan);
  part_.reset();
  held_.Take(ranked.turn.queue, AmountOf(plan));
  forecast_->Hold(AmountOf(plan), restart + seconds);
  return true;
}

bool SchedulingPass::TakeFromStopping(const Candidate& candidate, const Plan& wanted) {
  if (!Covers(outlook_.pool.total(), AmountOf(wanted))) return false;
  const std::optional<Plan> plan = outlook_.pool.Place(wanted);
  if (!plan || !Promise(candidate, *plan, outlook_)) return false;
  WaitDecision& wait = Wait(candidate.ranked, Reason::kWaitingForCapacity,
                            "starts when jobs that are stopping have saved");
  SetStart(wait, snapshot_.rules.growth.restart.assumed_start_seconds);
  return true;
}

bool SchedulingPass::TakeByShrinking(const Candidate& candidate, const Plan& wanted,
                                     double wait_seconds) {
  struct Shrink {
    const RankedActive* active;
    BetterWay way;
    double delay_seconds;  ///< Of its end.
  };
  const Turn& turn = candidate.ranked.turn;
  const double seconds = SecondsBy(candidate.ranked, wanted);
  if (seconds <= 0) return false;
  const ComputeAmount need = AmountOf(wanted);
  std::vector<Shrink> shrinks;
  ComputeAmount total = outlook_.pool.total();
  for (const RankedActive& active : active_) {
    const RunningJob& job = active.job->job;
    const int64_t ranks = std::ssize(job.plan->rank_workers);
    const bool may = active.job->may_stop && active.job->preemptible && job.saved &&
                     job.spec->resources.ranks == 0 && ranks > 1 &&
                     active.turn.priority <= turn.priority && active.turn.queue == turn.queue &&
                     OnDevices(*job.plan) == OnDevices(wanted) &&
                     job.attempt_seconds >= snapshot_.rules.protected_seconds;
    if (!may || shrinking_ >= kShrinking) continue;
    ++shrinking_;
    std::optional<BetterWay> way = FindShrink(job, ranks / 2, snapshot_.cluster, plan_);
    if (!way) continue;
    const double slower = way->plan.prediction.step_seconds / job.plan->prediction.step_seconds;
    // It may grow again when the other one has ended.
    const double delay = std::min(active.seconds_left, seconds) * (slower - 1) +
                         2 * RestartSeconds(job, snapshot_.rules.growth.restart);
    total += AmountOf(*job.plan);
    total -= AmountOf(way->plan);
    shrinks.push_back({&active, *std::move(way), delay});
  }
  if (shrinks.empty() || !Covers(total, need)) return false;
  std::stable_sort(shrinks.begin(), shrinks.end(), [](const Shrink& a, const Shrink& b) {
    return a.delay_seconds < b.delay_seconds;
  });
  Outlook outlook = outlook_;
  double delay = 0;
  for (size_t i = 0; i < shrinks.size(); ++i) {
    const Shrink& shrink = shrinks[i];
    const Plan& before = *shrink.active->job->job.plan;
    delay += shrink.delay_seconds;
    if (delay >= wait_seconds) return false;
    outlook.pool.Release(before);
    outlook.pool.Take(shrink.way.plan);
    (void)outlook.releases.Remove({&before});
    const double left = shrink.active->seconds_left * shrink.way.plan.prediction.step_seconds /
                        before.prediction.step_seconds;
    plans_.push_back(shrink.way.plan);
    outlook.releases.Add(left, plans_.back(), shrink.active->job->id);
    if (!Covers(outlook.pool.total(), need)) continue;
    const std::optional<Plan> plan = outlook.pool.Place(wanted);
    if (!plan) continue;
    if (!Promise(candidate, *plan, std::move(outlook))) return false;
    std::vector<std::string> ids;
    for (size_t j = 0; j <= i; ++j) {
      const ActiveJob& job = *shrinks[j].active->job;
      ids.push_back(job.id);
      held_.Give(shrinks[j].active->turn.queue, AmountOf(*job.job.plan));
      held_.Take(shrinks[j].active->turn.queue, AmountOf(shrinks[j].way.plan));
      shrinks[j].way.why += ", for job " + candidate.job.id;
      decisions_.resizes.push_back({job.id, std::move(shrinks[j].way), candidate.job.id});
    }
    std::erase_if(active_, [&](const RankedActive& active) {
      return std::find(ids.begin(), ids.end(), active.job->id) != ids.end();
    });
    WaitDecision& wait =
        Wait(candidate.ranked, Reason::kWaitingForCapacity,
             "starts when jobs have saved that go on with fewer ranks: " + Names(ids));
    wait.blocked_by = std::move(ids);
    SetStart(wait, snapshot_.rules.growth.restart.assumed_start_seconds);
    return true;
  }
  return false;
}

bool SchedulingPass::TakeByPreempting(const Candidate& candidate, const Plan& wanted,
                                      double wait_seconds) {
  std::optional<Displacement> found = FindVictims(candidate.ranked, wanted, wait_seconds, active_,
                                                  outlook_.pool, held_, snapshot_.rules);
  if (!found) return false;
  Outlook outlook = outlook_;
  std::set<const Plan*> given_up;
  for (const RankedActive* victim : found->victims) {
    outlook.pool.Release(*victim->job->job.plan);
    given_up.insert(victim->job->job.plan);
  }
  (void)outlook.releases.Remove(given_up);
  if (!Promise(candidate, found->plan, std::move(outlook))) return false;
  std::vector<std::string> ids;
  for (size_t i = 0; i < found->victims.size(); ++i) {
    const RankedActive& victim = *found->victims[i];
    ids.push_back(victim.job->id);
    held_.Give(victim.turn.queue, victim.turn.amount);
    decisions_.preemptions.push_back(
        {victim.job->id, candidate.job.id,
         "for job " + candidate.job.id + ", which " + found->reasons[i]});
  }
  std::erase_if(active_, [&](const RankedActive& active) {
    return std::find(ids.begin(), ids.end(), active.job->id) != ids.end();
  });
  WaitDecision& wait = Wait(candidate.ranked, Reason::kWaitingForCapacity,
                            "starts when jobs have saved that give way to it: " + Names(ids));
  wait.blocked_by = std::move(ids);
  SetStart(wait, snapshot_.rules.growth.restart.assumed_start_seconds);
  return true;
}

void SchedulingPass::Advise(const Candidate& candidate, const Plan& wanted,
                            WaitDecision& wait) const {
  const ResourceSpec& resources = candidate.job.spec->resources;
  const ComputeAmount now = free_.total();
  const ComputeAmount need = AmountOf(wanted);
  const int64_t ranks = OnDevices(wanted) ? now.gpus : now.cores / wanted.threads_per_rank;
  if (!Covers(now, need) && resources.ranks > 0 && ranks > 0) {
    wait.would_start_now.push_back("fewer ranks: resources.ranks of at most " +
                                   std::to_string(ranks) + ", or 0 to leave it to the planner");
  }
  // The lowest priority that takes what it needs from others.
  RankedJob urgent = candidate.ranked;
  urgent.turn.priority = std::numeric_limits<int64_t>::max();
  const std::optional<Displacement> found =
      FindVictims(urgent, wanted, std::numeric_limits<double>::infinity(), active_, outlook_.pool,
                  held_, snapshot_.rules);
  if (!found) return;
  int64_t priority = candidate.ranked.turn.priority;
  std::vector<std::string> ids;
  for (const RankedActive* victim : found->victims) {
    ids.push_back(victim->job->id);
    priority = std::max(priority, victim->turn.priority + 1);
  }
  if (priority > candidate.ranked.turn.priority) {
    wait.would_start_now.push_back("a priority of " + std::to_string(priority) +
                                   ", which displaces " + Names(ids));
  }
}

void SchedulingPass::Grow() {
  const GrowthRules& rules = snapshot_.rules.growth;
  if (rules.after_seconds <= 0) return;
  // Of which the least is left comes first: it gives back soonest what it takes.
  std::stable_sort(
      active_.begin(), active_.end(),
      [](const RankedActive& a, const RankedActive& b) { return a.turn.work < b.turn.work; });
  int looked_at = 0;
  for (const RankedActive& active : active_) {
    const ComputeAmount left = free_.total();
    const RunningJob& job = active.job->job;
    if (looked_at >= kGrowing || (left.gpus < 1 && left.cores < 1)) return;
    if (!active.job->may_stop || !MayGrow(job, rules)) continue;
    if ((OnDevices(*job.plan) ? left.gpus : left.cores) < 1) continue;
    ++looked_at;
    const auto& own = job.plan->rank_workers;
    ClusterProfile steady;
    for (const WorkerProfile& worker : snapshot_.cluster.workers) {
      const std::string& id = worker.worker_id;
      if (!snapshot_.new_workers.contains(id) ||
          std::find(own.begin(), own.end(), id) != own.end()) {
        steady.workers.push_back(worker);
      }
    }
    CapacityPool with_own = free_;
    with_own.Release(*job.plan);
    // The larger a job is, the less it gains by each GPU: others should grow, too.
    JobSpec spec = *job.spec;
    if (OnDevices(*job.plan)) spec.resources.max_ranks = MostGrownRanks(spec);
    FreeMap room = with_own.ToMap();
    QueueTree others = holding_;
    others.Give(active.turn.queue, active.turn.amount);
    if (const auto gpus = others.GpusLeft(active.turn.queue); gpus && OnDevices(*job.plan)) {
      int64_t& most = spec.resources.max_ranks;
      most = most > 0 ? std::min(most, *gpus) : *gpus;
    } else if (const auto cores = others.CoresLeft(active.turn.queue);
               cores && !OnDevices(*job.plan)) {
      room = WithCores(std::move(room), *cores);
    }
    RunningJob growing = job;
    growing.spec = &spec;
    std::optional<BetterWay> way = FindGrowth(growing, steady, room, rules, plan_);
    // What a job with resources.ranks had before may be more than its queue may hold by now.
    if (!way || others.LimitedBy(active.turn.queue, AmountOf(way->plan)) != nullptr) continue;
    const double seconds =
        active.seconds_left * way->plan.prediction.step_seconds / job.plan->prediction.step_seconds;
    if (!held_back_by_.empty()) {
      Outlook outlook = outlook_;
      outlook.pool.Release(*job.plan);
      outlook.pool.Take(way->plan);
      (void)outlook.releases.Remove({job.plan});
      plans_.push_back(way->plan);
      outlook.releases.Add(seconds, plans_.back(), active.job->id);
      if (!reservation_) continue;
      std::optional<Reservation> kept = ReserveFor(reservation_->plan, outlook);
      if (!kept || kept->seconds > reservation_->seconds) continue;
      outlook_ = std::move(outlook);
      reservation_ = std::move(kept);
    }
    free_.Release(*job.plan);
    free_.Take(way->plan);
    others.Take(active.turn.queue, AmountOf(way->plan));
    holding_ = std::move(others);
    decisions_.resizes.push_back({active.job->id, *std::move(way), ""});
  }
}

}  // namespace weft::coordinator
