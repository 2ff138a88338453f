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

/// What a running job gives to one that waits for its share.
struct Gives {
  const RankedActive* active;
  std::optional<PlanChange> change;  ///< With fewer ranks; nullopt: all.
};

/// `pool` once all of `gives` except number `spared` have given; nullopt: that leaves one of them
/// no room for its smaller plan.
std::optional<CapacityPool> WithoutOne(CapacityPool pool, const std::vector<Gives>& gives,
                                       size_t spared) {
  for (size_t i = 0; i < gives.size(); ++i) {
    if (i != spared) pool.Release(*gives[i].active->job->job.plan);
  }
  for (size_t i = 0; i < gives.size(); ++i) {
    if (i == spared || !gives[i].change) continue;
    if (!pool.Fits(gives[i].change->plan)) return std::nullopt;
    pool.Take(gives[i].change->plan);
  }
  return pool;
}

/// Up to `shares` times its share for a job that may grow; nullopt: it has as much. `others_wait`:
/// for what it would take.
std::optional<SizeBounds> BoundsOfGrowth(const RankedActive& active, int64_t shares,
                                         bool others_wait) {
  const RunningJob& job = active.job->job;
  const bool devices = OnDevices(*job.plan);
  SizeBounds bounds{job.spec->resources.max_ranks, {}};
  const bool keeps_ranks = !devices && job.spec->resources.ranks > 0;
  if (active.share.amount == 0 || keeps_ranks) {
    return others_wait && !devices ? std::nullopt : std::optional(bounds);
  }
  if (shares == 1 && active.share.beyond) return std::nullopt;
  const int64_t most = shares * active.share.amount;
  if (most <= ComputeOf(*job.plan)) return std::nullopt;
  if (!devices) {
    bounds.most_cores = most;
  } else {
    bounds.max_ranks = bounds.max_ranks > 0 ? std::min(most, bounds.max_ranks) : most;
  }
  return bounds;
}

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
    if (TakeShare(candidate, wanted, wait)) return;
    if (TakeByPreempting(candidate, wanted, wait)) return;
  }
  if (!first) {
    WaitBehind(ranked);
  } else {
    HoldBack(ranked, /*by_planning=*/false);
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
}

bool SchedulingPass::Promise(const Candidate& candidate, const Plan& plan, Outlook outlook) {
  const RankedJob& ranked = candidate.ranked;
  plans_.push_back(plan);
  const double restart = snapshot_.rules.scale_up.restart.assumed_start_seconds;
  const double seconds = SecondsBy(ranked, plan);
  outlook.pool.Take(plan);
  outlook.releases.Add(seconds > 0 ? restart + seconds : std::numeric_limits<double>::infinity(),
                       plans_.back(), candidate.job.id);
  if (reservation_) {
    std::optional<Reservation> kept = ReservationBy(outlook);
    if (!kept) {
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
  holding_.Take(ranked.turn.queue, AmountOf(plan));
  forecast_->Hold(AmountOf(plan), restart + seconds);
  return true;
}

bool SchedulingPass::TakeFromStopping(const Candidate& candidate, const Plan& wanted) {
  if (!Covers(outlook_.pool.total(), AmountOf(wanted))) return false;
  const std::optional<Plan> plan = outlook_.pool.Place(wanted);
  // Where it fits now, it waits for the reservation and for none of them.
  if (!plan || free_.Fits(*plan) || !Promise(candidate, *plan, outlook_)) return false;
  WaitDecision& wait = Wait(candidate.ranked, Reason::kWaitingForCapacity,
                            "starts when jobs that are stopping have saved");
  SetStart(wait, snapshot_.rules.scale_up.restart.assumed_start_seconds);
  return true;
}

bool SchedulingPass::TakeShare(const Candidate& candidate, const Plan& wanted,
                               double wait_seconds) {
  const RankedJob& ranked = candidate.ranked;
  const SchedulerRules& rules = snapshot_.rules;
  if (ranked.share.amount == 0 || ranked.share.beyond) return false;
  // Those whose turn is last give first.
  std::vector<const RankedActive*> last_first;
  for (const RankedActive& active : active_) last_first.push_back(&active);
  std::stable_sort(
      last_first.begin(), last_first.end(), [](const RankedActive* a, const RankedActive* b) {
        return a->turn.priority != b->turn.priority ? a->turn.priority < b->turn.priority
                                                    : a->turn.at > b->turn.at;
      });
  std::vector<Gives> gives;
  CapacityPool pool = outlook_.pool;
  std::optional<Plan> plan;
  for (const RankedActive* active : last_first) {
    const RunningJob& job = active->job->job;
    const bool may = active->job->may_stop && active->job->preemptible && job.saved &&
                     active->turn.priority <= ranked.turn.priority &&
                     active->turn.queue == ranked.turn.queue &&
                     OnDevices(*job.plan) == OnDevices(wanted) &&
                     job.attempt_seconds >= rules.protected_seconds &&
                     wait_seconds > RestartSeconds(job, rules.scale_up.restart);
    if (!may) continue;
    std::optional<PlanChange> change;
    if (active->share.amount > 0 && !active->share.beyond) {
      if (job.spec->resources.ranks > 0 || shrinking_ >= kShrinking ||
          ComputeOf(*job.plan) <= active->share.amount) {
        continue;
      }
      ++shrinking_;
      change = FindShrink(job, active->share.amount, snapshot_.cluster, plan_);
      if (!change) continue;
    } else if (ClaimOf(ranked.turn, wait_seconds, *active, held_, rules) != Claim::kShorter) {
      continue;
    }
    pool.Release(*job.plan);
    // Others on CPUs may hold memory of a machine that the plan counts on.
    if (change && !pool.Fits(change->plan)) {
      pool.Take(*job.plan);
      continue;
    }
    if (change) pool.Take(change->plan);
    gives.push_back({active, std::move(change)});
    if (!Covers(pool.total(), AmountOf(wanted))) continue;
    plan = pool.Place(wanted);
    if (plan) break;
  }
  if (!plan) return false;
  // None of them is spare. The last one is not: without it there was no place.
  for (size_t i = gives.size() - 1; i-- > 0;) {
    std::optional<CapacityPool> without = WithoutOne(outlook_.pool, gives, i);
    if (!without) continue;
    std::optional<Plan> place = without->Place(wanted);
    if (!place) continue;
    plan = std::move(place);
    pool = *std::move(without);
    gives.erase(gives.begin() + static_cast<std::ptrdiff_t>(i));
  }
  Outlook outlook{std::move(pool), outlook_.releases};
  for (const Gives& give : gives) {
    const Plan& before = *give.active->job->job.plan;
    (void)outlook.releases.Remove({&before});
    if (!give.change) continue;
    const double left = give.active->seconds_left * give.change->plan.prediction.step_seconds /
                        before.prediction.step_seconds;
    plans_.push_back(give.change->plan);
    outlook.releases.Add(left, plans_.back(), give.active->job->id);
  }
  if (!Promise(candidate, *plan, std::move(outlook))) return false;
  std::vector<std::string> ids;
  for (Gives& give : gives) {
    const ActiveJob& job = *give.active->job;
    ids.push_back(job.id);
    held_.Give(give.active->turn.queue, give.active->turn.amount);
    if (give.change) {
      held_.Take(give.active->turn.queue, AmountOf(give.change->plan));
      give.change->why += ", for job " + candidate.job.id;
      decisions_.resizes.push_back({job.id, *std::move(give.change), candidate.job.id});
    } else {
      decisions_.preemptions.push_back(
          {job.id, candidate.job.id,
           "for job " + candidate.job.id + ", which has much less left to do"});
    }
  }
  std::erase_if(active_, [&](const RankedActive& active) {
    return std::find(ids.begin(), ids.end(), active.job->id) != ids.end();
  });
  WaitDecision& wait =
      Wait(ranked, Reason::kWaitingForCapacity,
           "starts when jobs have saved that hold more than their share: " + Names(ids));
  wait.blocked_by = std::move(ids);
  SetStart(wait, rules.scale_up.restart.assumed_start_seconds);
  return true;
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
  SetStart(wait, snapshot_.rules.scale_up.restart.assumed_start_seconds);
  return true;
}

std::vector<std::string> SchedulingPass::WouldStartNow() && {
  JobOrder order(snapshot_, turns_, held_);
  ShareAmong(order);
  const RankedJob* ranked = order.Next();
  if (ranked == nullptr || snapshot_.cluster.workers.empty()) return {};
  const QueuedJob& job = *ranked->job;
  if (snapshot_.rules.spare_workers > 0 && !job.recovers) LeaveSpares();
  Candidate candidate{*ranked, job, WithDevice(*job.spec, job.last_plan, snapshot_.cluster)};
  if (!KeepWithinLimit(candidate)) return {};
  candidate.beyond_share = {candidate.spec.resources.max_ranks, candidate.most_cores};
  KeepToShare(candidate);
  const Result<Plan> wanted = Wanted(candidate);
  if (!wanted.ok()) return {};
  if (holding_.LimitedBy(ranked->turn.queue, AmountOf(*wanted)) != nullptr) return {};
  if (free_.Place(*wanted)) return {"its turn: there is room for it, and others go first"};
  return Advise(candidate, *wanted);
}

std::vector<std::string> SchedulingPass::Advise(const Candidate& candidate,
                                                const Plan& wanted) const {
  std::vector<std::string> ways;
  const ResourceSpec& resources = candidate.job.spec->resources;
  const ComputeAmount now = free_.total();
  const ComputeAmount need = AmountOf(wanted);
  const int64_t ranks = OnDevices(wanted) ? now.gpus : now.cores / wanted.threads_per_rank;
  if (!Covers(now, need) && resources.ranks > 0 && ranks > 0) {
    ways.push_back("fewer ranks: resources.ranks of at most " + std::to_string(ranks) +
                   ", or 0 to leave it to the planner");
  }
  // The lowest priority that takes what it needs from others.
  RankedJob urgent = candidate.ranked;
  urgent.turn.priority = std::numeric_limits<int64_t>::max();
  const std::optional<Displacement> found =
      FindVictims(urgent, wanted, std::numeric_limits<double>::infinity(), active_, outlook_.pool,
                  held_, snapshot_.rules);
  if (!found) return ways;
  int64_t priority = candidate.ranked.turn.priority;
  std::vector<std::string> ids;
  for (const RankedActive* victim : found->victims) {
    ids.push_back(victim->job->id);
    priority = std::max(priority, victim->turn.priority + 1);
  }
  if (priority > candidate.ranked.turn.priority) {
    ways.push_back("a priority of " + std::to_string(priority) + ", which displaces " + Names(ids));
  }
  return ways;
}

void SchedulingPass::Grow(int64_t shares, const RankedJob* before) {
  if (snapshot_.rules.scale_up.after_seconds <= 0) return;
  // The one with the least left comes first: it gives back soonest what it takes.
  std::vector<const RankedActive*> shortest_first;
  for (const RankedActive& active : active_) shortest_first.push_back(&active);
  std::stable_sort(
      shortest_first.begin(), shortest_first.end(),
      [](const RankedActive* a, const RankedActive* b) { return a->turn.work < b->turn.work; });
  std::set<std::string> grown;
  for (const RankedActive* active : shortest_first) {
    const ComputeAmount left = free_.total();
    if (growing_ >= kGrowing || (left.gpus < 1 && left.cores < 1)) break;
    if (GrowOne(*active, shares, before)) grown.insert(active->job->id);
  }
  std::erase_if(active_,
                [&](const RankedActive& active) { return grown.contains(active.job->id); });
}

std::optional<PlanChange> SchedulingPass::LargerPlan(const RankedActive& active, SizeBounds bounds,
                                                     const QueueTree& others) const {
  const Plan& present = *active.job->job.plan;
  const auto& own = present.rank_workers;
  ClusterProfile steady;
  for (const WorkerProfile& worker : snapshot_.cluster.workers) {
    const std::string& id = worker.worker_id;
    if (!snapshot_.new_workers.contains(id) || std::find(own.begin(), own.end(), id) != own.end()) {
      steady.workers.push_back(worker);
    }
  }
  CapacityPool with_own = free_;
  with_own.Release(present);
  FreeMap room = with_own.ToMap();
  const size_t queue = active.turn.queue;
  if (OnDevices(present)) {
    if (const auto gpus = others.GpusLeft(queue)) {
      bounds.max_ranks = bounds.max_ranks > 0 ? std::min(bounds.max_ranks, *gpus) : *gpus;
    }
  } else {
    if (const auto cores = others.CoresLeft(queue)) {
      bounds.most_cores = std::min(bounds.most_cores.value_or(*cores), *cores);
    }
    if (bounds.most_cores) room = WithCores(std::move(room), *bounds.most_cores, &present);
  }
  JobSpec spec = *active.job->job.spec;
  spec.resources.max_ranks = bounds.max_ranks;
  RunningJob growing = active.job->job;
  growing.spec = &spec;
  return FindScaleUp(growing, steady, room, snapshot_.rules.scale_up, plan_);
}

bool SchedulingPass::JoinPeers(const RankedActive& active, const SizeBounds& bounds) {
  const RunningJob& job = active.job->job;
  const size_t queue = active.turn.queue;
  Plan one = *job.plan;
  one.mesh.data = 1;
  one.rank_devices.clear();
  int64_t ranks = std::ssize(job.plan->rank_workers) + job.joining;
  const size_t before = decisions_.joins.size();
  for (const WorkerProfile& worker : snapshot_.cluster.workers) {
    if (job.no_peers_on->contains(worker.worker_id)) continue;
    if (bounds.max_ranks > 0 && ranks >= bounds.max_ranks) break;
    if (bounds.most_cores && (ranks + 1) * one.threads_per_rank > *bounds.most_cores) break;
    one.rank_workers = {worker.worker_id};
    const ComputeAmount amount = AmountOf(one);
    if (holding_.LimitedBy(queue, amount) != nullptr) break;
    if (!free_.Fits(one) || !LeavesReservation(one, active.seconds_left)) continue;
    if (reservation_ &&
        !(active.seconds_left > 0 && active.seconds_left <= reservation_->seconds)) {
      reservation_->left.Take(one);
    }
    free_.Take(one);
    outlook_.pool.Take(one);
    part_.reset();
    holding_.Take(queue, amount);
    held_.Take(queue, amount);
    ++ranks;
    decisions_.joins.push_back({active.job->id, worker.worker_id});
  }
  return decisions_.joins.size() > before;
}

bool SchedulingPass::GrowOne(const RankedActive& active, int64_t shares, const RankedJob* before) {
  const RunningJob& job = active.job->job;
  const bool devices = OnDevices(*job.plan);
  const size_t queue = active.turn.queue;
  if (before != nullptr &&
      (queue != before->turn.queue || active.turn.priority < before->turn.priority ||
       devices != before->on_devices)) {
    return false;
  }
  if ((devices ? free_.total().gpus : free_.total().cores) < 1) return false;
  const bool joins = job.no_peers_on.has_value();
  if (!active.job->may_stop || !(joins || MayScaleUp(job, snapshot_.rules.scale_up))) return false;
  const std::optional<SizeBounds> bounds = BoundsOfGrowth(active, shares, before != nullptr);
  if (!bounds) return false;
  if (joins) return JoinPeers(active, *bounds);
  ++growing_;
  QueueTree holding = holding_;
  holding.Give(queue, AmountOf(*job.plan));
  std::optional<PlanChange> change = LargerPlan(active, *bounds, holding);
  // What a job with resources.ranks had before may be more than its queue may hold by now.
  if (!change || holding.LimitedBy(queue, AmountOf(change->plan)) != nullptr) return false;
  Outlook outlook = outlook_;
  outlook.pool.Release(*job.plan);
  outlook.pool.Take(change->plan);
  (void)outlook.releases.Remove({job.plan});
  plans_.push_back(change->plan);
  outlook.releases.Add(active.seconds_left * change->plan.prediction.step_seconds /
                           job.plan->prediction.step_seconds,
                       plans_.back(), active.job->id);
  if (!held_back_by_.empty()) {
    if (!reservation_) return false;
    std::optional<Reservation> kept = ReserveFor(reservation_->plan, outlook);
    if (!kept || kept->seconds > reservation_->seconds) return false;
    reservation_ = std::move(kept);
  }
  outlook_ = std::move(outlook);
  free_.TakeBeyond(*job.plan, change->plan);
  part_.reset();
  holding_ = std::move(holding);
  holding_.Take(queue, AmountOf(change->plan));
  held_.Give(queue, AmountOf(*job.plan));
  held_.Take(queue, AmountOf(change->plan));
  decisions_.resizes.push_back({active.job->id, *std::move(change), ""});
  return true;
}

}  // namespace weft::coordinator
