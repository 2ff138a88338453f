#include "coordinator/scheduler/pass.h"

#include <algorithm>
#include <bit>
#include <set>

namespace weft::coordinator {
namespace {

/// Jobs that wait whose plan is asked for in one pass though it is not their turn.
constexpr int kPlannedAhead = 64;
/// The same for jobs that were submitted last: they do not wait for the plans of all before them.
constexpr int kPlannedLast = 64;
/// Plans for what is free that one pass asks for; after them those for the whole cluster do.
constexpr int kPlansForFree = 16;
/// Jobs that are looked at closely in one pass though others go first.
constexpr int kBackfills = 256;

/// A power of two, so that plans can be used again while the number changes.
int64_t PowerOfTwoWithin(int64_t most, int64_t least) {
  const auto positive = static_cast<uint64_t>(std::max<int64_t>(most, 1));
  return std::max(static_cast<int64_t>(std::bit_floor(positive)), least);
}

/// Its plan for this cluster is still to be found.
bool IsUnplanned(const QueuedJob& job) {
  return job.last_plan == nullptr && job.next_plan == nullptr && !job.size;
}

bool LeavesSizeOpen(const ResourceSpec& resources, bool devices) {
  return resources.ranks == 0 || (!devices && resources.threads_per_rank == 0);
}

/// Where the job ran before if possible, else on the fastest links.
std::optional<Plan> PlaceIn(const CapacityPool& pool, const QueuedJob& job, const Plan& plan) {
  std::optional<Plan> placed = pool.Place(plan);
  if (placed && job.last_plan == nullptr) placed = pool.OnFasterLinks(*std::move(placed));
  return placed;
}

/// What the job has when it starts again, or needs at least.
ComputeAmount LeastOf(const RankedJob& ranked) {
  const QueuedJob& job = *ranked.job;
  if (job.next_plan != nullptr) return AmountOf(*job.next_plan);
  const ResourceSpec& resources = job.spec->resources;
  const int64_t ranks = std::max<int64_t>({resources.ranks, resources.min_ranks, 1});
  if (ranked.on_devices) return {ranks, 0};
  const int64_t fixed = resources.ranks > 0 ? ranked.turn.amount.cores : 0;
  return {0, std::max(ranks * CoresOfARank(resources), fixed)};
}

/// What the job computes with, also once those that start to join it have done so.
ComputeAmount AmountHeld(const RunningJob& job) {
  ComputeAmount amount = AmountOf(*job.plan);
  (OnDevices(*job.plan) ? amount.gpus : amount.cores) +=
      job.joining * (OnDevices(*job.plan) ? 1 : job.plan->threads_per_rank);
  return amount;
}

}  // namespace

SchedulingPass::SchedulingPass(const SchedulerSnapshot& snapshot, const PlanFunction& plan)
    : snapshot_(snapshot),
      plan_(plan),
      total_(AmountOf(snapshot.cluster)),
      turns_(snapshot.rules, total_),
      has_devices_(
          std::any_of(snapshot.cluster.workers.begin(), snapshot.cluster.workers.end(),
                      [](const WorkerProfile& worker) { return worker.device == "cuda"; })),
      holding_(snapshot.queues, total_),
      held_(holding_),
      free_(snapshot.cluster, snapshot.free, snapshot.links),
      outlook_{SoonFree(free_, snapshot.active), {}} {
  for (const ActiveJob& job : snapshot.active) {
    const size_t queue = held_.Find(job.queue);
    const ComputeAmount amount = AmountHeld(job.job);
    const ComputeAmount next = job.next_plan != nullptr ? AmountOf(*job.next_plan) : amount;
    holding_.Take(queue, {std::max(amount.gpus, next.gpus), std::max(amount.cores, next.cores)});
    const double seconds = SecondsLeft(job.job);
    if (!job.stopping) {
      held_.Take(queue, amount);
      outlook_.releases.Add(seconds, *job.job.plan, job.id);
      const Turn turn = turns_.Of(queue, job.priority, amount, seconds, job.submitted_at);
      active_.push_back({&job, turn, seconds, LostSeconds(job, snapshot.rules.scale_up.restart)});
    } else if (job.next_plan != nullptr) {
      held_.Take(queue, next);
      free_.TakeBeyond(*job.job.plan, *job.next_plan);
      outlook_.releases.Add(seconds, *job.next_plan, job.id);
    }
  }
  SortByLoss(active_);
}

CapacityPool SchedulingPass::SoonFree(const CapacityPool& free,
                                      const std::vector<ActiveJob>& active) {
  CapacityPool soon = free;
  for (const ActiveJob& job : active) {
    if (!job.stopping) continue;
    soon.Release(*job.job.plan);
    if (job.next_plan != nullptr) soon.Take(*job.next_plan);
  }
  return soon;
}

SchedulerDecisions SchedulingPass::Run() && {
  forecast_.emplace(outlook_.pool.total(), outlook_.releases.Amounts());
  decisions_.waits.reserve(snapshot_.queue.size() + snapshot_.held.size());
  JobOrder order(snapshot_, turns_, held_);
  ShareAmong(order);
  if (snapshot_.rules.spare_workers > 0) {
    StartRecovering(order);
    LeaveSpares();
  }
  order.ForEach([&](const RankedJob& ranked) {
    if (ranked.goes_first && !recovered_.contains(ranked.job)) promised_ += LeastOf(ranked);
  });
  for (auto job = snapshot_.queue.rbegin();
       job != snapshot_.queue.rend() && std::ssize(planned_last_) < kPlannedLast; ++job) {
    if (IsUnplanned(*job) && job->infeasible_reason == nullptr && job->given_up_reason == nullptr) {
      planned_last_.insert(&*job);
    }
  }
  std::set<std::pair<size_t, bool>> have_their_shares;  // queues, on GPUs and on CPUs
  while (const RankedJob* ranked = order.Next()) {
    if (recovered_.contains(ranked->job)) continue;
    // Jobs that run have their share before those start for which none is left.
    if (ranked->share.beyond && !ranked->goes_first &&
        have_their_shares.emplace(ranked->turn.queue, ranked->on_devices).second) {
      Grow(1, ranked);
    }
    Consider(*ranked);
  }
  // Some do not use theirs.
  Grow(2, nullptr);
  for (const HeldJob& held : snapshot_.held) {
    WaitDecision& wait = decisions_.waits.emplace_back();
    wait.job_id = held.id;
    wait.reason = Reason::kWaitingForJobs;
    wait.message = held.why;
    wait.position = std::ssize(decisions_.waits);
    wait.blocked_by = held.blocked_by;
  }
  return std::move(decisions_);
}

void SchedulingPass::Consider(const RankedJob& ranked) {
  const QueuedJob& job = *ranked.job;
  if (snapshot_.cluster.workers.empty()) {
    Wait(ranked, Reason::kWaitingForWorkers, "no worker is attached; hint: start weft-worker");
    return;
  }
  if (job.infeasible_reason != nullptr) {
    Wait(ranked, Reason::kWaitingForWorkers, *job.infeasible_reason);
    return;
  }
  if (job.given_up_reason != nullptr) {
    Wait(ranked, Reason::kPlanning, *job.given_up_reason).for_planning = true;
    return;
  }
  const bool open =
      job.last_plan == nullptr && LeavesSizeOpen(job.spec->resources, ranked.turn.amount.gpus > 0);
  if (WaitsForLimit(ranked, open ? ComputeAmount{} : ranked.turn.amount)) return;
  const bool others_first = !held_back_by_.empty();
  if (planned_ahead_ >= kPlannedAhead && !planned_last_.contains(&job)) {
    if (others_first && (held_by_planning_ || !ranked.known_size)) return WaitBehind(ranked);
    if (!others_first && IsUnplanned(job)) {
      return AwaitPlan(ranked, UnavailableError("its plan is looked for after those of others"));
    }
  }
  if (others_first && !held_by_planning_ && ranked.known_size) {
    // Most of a long queue ends here.
    ComputeAmount amount = ranked.turn.amount;
    if (const int64_t most = MostOf(ranked); most > 0 && job.last_plan == nullptr) {
      int64_t& wanted = ranked.on_devices ? amount.gpus : amount.cores;
      wanted = std::min(wanted, most);
    }
    const bool soon = Covers(outlook_.pool.total(), amount);
    const bool fits = soon && tried_backfills_ < kBackfills;
    if (!fits && displacing_ >= kDisplacing) return WaitBehind(ranked);
  }
  Candidate candidate{ranked, job, WithDevice(*job.spec, job.last_plan, snapshot_.cluster)};
  if (ranked.goes_first) promised_ -= LeastOf(ranked);
  if (!KeepWithinLimit(candidate)) return;
  candidate.beyond_share = {candidate.spec.resources.max_ranks, candidate.most_cores};
  if (ranked.goes_first) LeaveOthersTheirPromise(candidate);
  KeepToShare(candidate);
  if (others_first && !held_by_planning_) {
    Backfill(candidate);
  } else {
    TakeTurn(candidate);
  }
}

void SchedulingPass::TakeTurn(const Candidate& candidate) {
  const RankedJob& ranked = candidate.ranked;
  Result<Plan> chosen = Choose(candidate);
  const bool fits = chosen.ok() && free_.Fits(*chosen);
  const bool unknown = !chosen.ok() && HasNoAnswerYet(chosen.status());
  const bool looked_for = unknown && !WasGivenUp(chosen.status());
  if (held_by_planning_ || (looked_for && !candidate.job.planned_long)) {
    if (looked_for) {
      ++planned_ahead_;
      return AwaitPlan(ranked, chosen.status());
    }
    if (fits) {
      ++planned_ahead_;
      return WaitBehind(ranked);
    }
  } else if (fits && EndsEarlier(candidate, *chosen)) {
    return Start(ranked, *std::move(chosen));
  }
  const Result<Plan> wanted = Wanted(candidate);
  if (!wanted.ok() && HasNoAnswerYet(wanted.status())) {
    ++planned_ahead_;
    return AwaitPlan(ranked, wanted.status());
  }
  if (!wanted.ok()) return WaitInfeasible(candidate, wanted.status());
  if (unknown) {
    std::optional<Plan> placed = PlaceIn(free_, candidate.job, *wanted);
    if (placed && held_back_by_.empty()) return Start(ranked, *std::move(placed));
    if (looked_for) return WaitForPlan(ranked, chosen.status());
  }
  if (held_by_planning_) return WaitBehind(ranked);
  if (fits) {
    // What it would rather wait for may have room in another place than where it was planned.
    std::optional<Plan> placed = PlaceIn(free_, candidate.job, *wanted);
    if (placed) return Start(ranked, *std::move(placed));
  }
  AwaitRoom(candidate, *wanted);
}

void SchedulingPass::Backfill(const Candidate& candidate) {
  const RankedJob& ranked = candidate.ranked;
  if (!ranked.known_size) ++planned_ahead_;
  ++tried_backfills_;
  const Result<Plan> wanted = Wanted(candidate);
  if (!wanted.ok() && HasNoAnswerYet(wanted.status())) return WaitForPlan(ranked, wanted.status());
  if (!wanted.ok()) return WaitInfeasible(candidate, wanted.status());
  std::optional<Plan> placed = PlaceIn(free_, candidate.job, *wanted);
  if (placed && LeavesReservation(*placed, SecondsBy(ranked, *placed))) {
    return Start(ranked, *std::move(placed));
  }
  if (placed && reservation_) {
    std::optional<Plan> apart = PlaceIn(reservation_->left, candidate.job, *wanted);
    if (apart && free_.Fits(*apart)) return Start(ranked, *std::move(apart));
    if (YieldsToReservation(ranked, *placed)) return Start(ranked, *std::move(placed));
    if (StartMovingReservation(ranked, *placed)) return;
  }
  AwaitRoom(candidate, *wanted);
}

void SchedulingPass::LeaveOthersTheirPromise(Candidate& candidate) {
  const ComputeAmount least = LeastOf(candidate.ranked);
  ResourceSpec& resources = candidate.spec.resources;
  if (resources.ranks > 0) return;
  // Its share may be larger than the one for which others were stopped.
  if (resources.device == "cuda") {
    int64_t& most = resources.max_ranks;
    const int64_t within = PowerOfTwoWithin(free_.total().gpus - promised_.gpus, least.gpus);
    most = most > 0 ? std::min(most, within) : within;
  } else if (promised_.cores > 0) {
    const int64_t within = PowerOfTwoWithin(free_.total().cores - promised_.cores, least.cores);
    candidate.most_cores = std::min(candidate.most_cores.value_or(within), within);
  }
}

bool SchedulingPass::KeepWithinLimit(Candidate& candidate) {
  ResourceSpec& resources = candidate.spec.resources;
  const bool devices = resources.device == "cuda";
  if (!LeavesSizeOpen(resources, devices)) return true;
  const size_t queue = candidate.ranked.turn.queue;
  const std::optional<int64_t> left =
      devices ? holding_.GpusLeft(queue) : holding_.CoresLeft(queue);
  if (!left) return true;
  const int64_t least = std::max<int64_t>({resources.ranks, resources.min_ranks, 1});
  if (WaitsForLimit(candidate.ranked,
                    devices ? ComputeAmount{least, 0} : ComputeAmount{0, least})) {
    return false;
  }
  if (devices) {
    int64_t& most = resources.max_ranks;
    const int64_t within = PowerOfTwoWithin(*left, least);
    candidate.limited = within < (most > 0 ? most : total_.gpus);
    if (candidate.limited) most = within;
  } else {
    candidate.limited = *left < candidate.most_cores.value_or(total_.cores);
    if (candidate.limited) candidate.most_cores = left;
  }
  return true;
}

bool SchedulingPass::WaitsForLimit(const RankedJob& ranked, const ComputeAmount& amount) {
  const size_t queue = ranked.turn.queue;
  const QueueSpec* limited = holding_.LimitedBy(queue, amount);
  std::string of;
  if (limited != nullptr) {
    const int64_t limit = amount.gpus > 0 ? *limited->limit_gpus : *limited->limit_cores;
    of = "the limit of queue " + limited->name + ", " +
         Words(amount.gpus > 0 ? ComputeAmount{limit, 0} : ComputeAmount{0, limit});
    if (amount.gpus + amount.cores > limit) {
      Wait(ranked, Reason::kWaitingForQuota,
           "wants " + Words(amount) + ", more than " + of +
               "; hint: ask for fewer resources.ranks, or another scheduling.queue");
      return true;
    }
  }
  for (size_t at = queue;; at = holding_.parent(at)) {
    if (auto hold = limits_.find(at); hold != limits_.end()) {
      if (ranked.known_size && ranked.seconds <= hold->second.until_seconds) break;
      Wait(ranked, Reason::kWaitingForQuota,
           "waits behind job " + hold->second.job_id + " for the limit of queue " +
               holding_.name(at))
          .blocked_by = {hold->second.job_id};
      return true;
    }
    if (holding_.parent(at) == at) break;
  }
  if (limited == nullptr) return false;
  // Those after it may use the queue until enough of its jobs have ended.
  const size_t top = holding_.Find(limited->name);
  const auto below = [&](size_t at) {
    while (at != top && holding_.parent(at) != at) at = holding_.parent(at);
    return at == top;
  };
  std::vector<std::pair<double, int64_t>> ends;
  for (const RankedActive& active : active_) {
    const ComputeAmount& held = active.turn.amount;
    const int64_t gives = amount.gpus > 0 ? held.gpus : held.cores;
    if (gives > 0 && below(active.turn.queue)) ends.emplace_back(active.seconds_left, gives);
  }
  std::sort(ends.begin(), ends.end());
  LimitHold hold{ranked.job->id, 0};
  QueueTree left = holding_;
  for (const auto& [seconds, gives] : ends) {
    left.Give(top, amount.gpus > 0 ? ComputeAmount{gives, 0} : ComputeAmount{0, gives});
    hold.until_seconds = seconds;
    if (left.LimitedBy(top, amount) == nullptr) break;
  }
  WaitDecision& wait =
      Wait(ranked, Reason::kWaitingForQuota,
           "its queue holds as much as it may with " + Words(amount) + " more: " + of);
  if (hold.until_seconds > 0) SetStart(wait, hold.until_seconds);
  limits_.emplace(top, std::move(hold));
  return true;
}

template <class Function>
Result<Plan> SchedulingPass::PlanWithinShare(const Candidate& candidate, const ComputeAmount& room,
                                             Function plan) {
  Result<Plan> found = plan(candidate.spec, candidate.most_cores);
  const bool devices = candidate.spec.resources.device == "cuda";
  const SizeBounds& beyond = candidate.beyond_share;
  const int64_t all = devices ? room.gpus : room.cores;
  const int64_t bound =
      devices ? (beyond.max_ranks > 0 ? beyond.max_ranks : all) : beyond.most_cores.value_or(all);
  int64_t most =
      devices ? candidate.spec.resources.max_ranks : candidate.most_cores.value_or(bound);
  // Twice as much each time: little more than it needs, and plans can be used again.
  const int64_t end = std::min(all, bound);
  while (most > 0 && most < end && !found.ok() && !HasNoAnswerYet(found.status())) {
    most = std::min(2 * most, end);
    JobSpec spec = candidate.spec;
    if (devices) spec.resources.max_ranks = most;
    found = plan(spec, devices ? std::nullopt : std::optional(most));
  }
  return found;
}

ClusterProfile SchedulingPass::FreeWithCores(std::optional<int64_t> most_cores) const {
  if (!most_cores) return *part_;
  return FreePart(snapshot_.cluster, WithCores(free_.ToMap(), *most_cores));
}

Result<Plan> SchedulingPass::PlanFor(Whole& whole, const JobSpec& spec,
                                     std::optional<int64_t> most_cores) {
  if (!most_cores) return BestPlan(spec, whole.part ? *whole.part : snapshot_.cluster, plan_);
  auto known = whole.with_cores.find(*most_cores);
  if (known == whole.with_cores.end()) {
    const FreeMap some = WithCores(whole.free, *most_cores);
    known = whole.with_cores.emplace(*most_cores, FreePart(snapshot_.cluster, some)).first;
  }
  return BestPlan(spec, known->second, plan_);
}

Result<Plan> SchedulingPass::Choose(const Candidate& candidate) {
  const QueuedJob& job = candidate.job;
  const JobSpec& spec = candidate.spec;
  const bool plans = plans_for_free_ < kPlansForFree;
  if (plans && !part_) part_ = FreePart(snapshot_.cluster, free_.ToMap());
  const bool some = plans && !part_->workers.empty();
  if (job.out_of_memory && job.next_plan == nullptr && job.last_plan != nullptr && some) {
    ++plans_for_free_;
    Result<Plan> smaller = PlanWithinShare(
        candidate, free_.total(), [&](const JobSpec& said, std::optional<int64_t> most_cores) {
          return BestPlan(WithLessMemory(said, *job.last_plan), FreeWithCores(most_cores), plan_);
        });
    if (smaller.ok() || HasNoAnswerYet(smaller.status())) return smaller;
  }
  if (job.next_plan != nullptr) {
    if (free_.Fits(*job.next_plan)) return *job.next_plan;
    // Others may hold its GPUs by now.
    if (std::optional<Plan> elsewhere = free_.Place(*job.next_plan)) return *elsewhere;
  }
  if (job.replanned && job.last_plan != nullptr && some) {
    ++plans_for_free_;
    Result<Plan> better = BetterPlan(spec, *job.last_plan, job.ran_out_of_memory,
                                     FreeWithCores(candidate.most_cores), plan_);
    if (better.ok() && better->prediction.step_seconds < job.last_plan->prediction.step_seconds) {
      return better;
    }
    if (!better.ok() && HasNoAnswerYet(better.status())) return better;
  }
  if (job.last_plan != nullptr) {
    if (std::optional<Plan> again = free_.Place(*job.last_plan)) return *again;
  }
  if (free_.total().cores < 1) return ExhaustedError("every worker is taken");
  if (some) {
    ++plans_for_free_;
    Result<Plan> anew = PlanWithinShare(
        candidate, free_.total(), [this](const JobSpec& said, std::optional<int64_t> most_cores) {
          return BestPlan(said, FreeWithCores(most_cores), plan_);
        });
    if (anew.ok()) anew = free_.OnFasterLinks(*std::move(anew));
    return anew;
  }
  WEFT_ASSIGN_OR_RETURN(Plan wanted, Wanted(candidate));
  std::optional<Plan> placed = PlaceIn(free_, job, wanted);
  if (!placed) return ExhaustedError("other jobs hold the workers that it needs");
  return *std::move(placed);
}

Result<Plan> SchedulingPass::Wanted(const Candidate& candidate) {
  const QueuedJob& job = candidate.job;
  Whole& whole = WholeFor(job);
  if (job.last_plan != nullptr && !job.out_of_memory) {
    if (!whole.pool) whole.pool.emplace(snapshot_.cluster, whole.free);
    if (whole.pool->Place(*job.last_plan)) return *job.last_plan;
  }
  Result<Plan> wanted = PlanWithinShare(
      candidate, total_, [&](const JobSpec& said, std::optional<int64_t> most_cores) {
        return PlanFor(whole, said, most_cores);
      });
  if (wanted.ok() && !candidate.ranked.known_size && job.last_plan == nullptr) {
    decisions_.sizes.emplace_back(job.id,
                                  JobSize{AmountOf(*wanted), wanted->prediction.step_seconds});
  }
  return wanted;
}

bool SchedulingPass::EndsEarlier(const Candidate& candidate, const Plan& smaller) {
  const QueuedJob& job = candidate.job;
  if (candidate.spec.resources.ranks > 0 || job.next_plan != nullptr || job.promised) return true;
  const Result<Plan> wanted = Wanted(candidate);
  if (!wanted.ok() || ComputeOf(*wanted) <= ComputeOf(smaller)) return true;
  const auto steps = static_cast<double>(candidate.job.steps_left);
  const double saved = steps * (smaller.prediction.step_seconds - wanted->prediction.step_seconds);
  if (saved <= 0) return true;
  const std::optional<Reservation> later = outlook_.releases.Reserve(*wanted, outlook_.pool);
  return !later || saved <= later->seconds;
}

void SchedulingPass::Start(const RankedJob& ranked, Plan plan) {
  const ComputeAmount amount = AmountOf(plan);
  if (WaitsForLimit(ranked, amount)) return;
  const double seconds = SecondsBy(ranked, plan);
  free_.Take(plan);
  outlook_.pool.Take(plan);
  if (reservation_ && (seconds <= 0 || seconds > reservation_->seconds)) {
    reservation_->left.Take(plan);
  }
  held_.Take(ranked.turn.queue, amount);
  holding_.Take(ranked.turn.queue, amount);
  part_.reset();
  if (seconds > 0) {
    plans_.push_back(plan);
    outlook_.releases.Add(seconds, plans_.back(), ranked.job->id);
    forecast_->Hold(amount, seconds);
  }
  decisions_.starts.push_back({ranked.job->id, std::move(plan)});
}

double SchedulingPass::SecondsBy(const RankedJob& ranked, const Plan& plan) {
  const Plan* last = ranked.job->last_plan;
  // Its last plan may have been measured.
  if (last != nullptr && ComputeOf(*last) == ComputeOf(plan)) return ranked.seconds;
  return static_cast<double>(ranked.job->steps_left) * plan.prediction.step_seconds;
}

void SchedulingPass::HoldBack(const RankedJob& ranked, bool by_planning) {
  held_back_by_ = ranked.job->id;
  behind_ = "waits behind job " + held_back_by_ + ", which goes first";
  held_by_planning_ = by_planning;
}

WaitDecision& SchedulingPass::Wait(const RankedJob& ranked, Reason reason, std::string message) {
  WaitDecision& wait = decisions_.waits.emplace_back();
  wait.job_id = ranked.job->id;
  wait.reason = reason;
  wait.message = std::move(message);
  wait.position = std::ssize(decisions_.waits);
  return wait;
}

void SchedulingPass::WaitBehind(const RankedJob& ranked) {
  WaitDecision& wait = Wait(ranked, Reason::kWaitingForCapacity, behind_);
  wait.blocked_by.push_back(held_back_by_);
  wait.for_planning = held_by_planning_;
  if (ranked.known_size) {
    SetStart(wait, forecast_->Start(ranked.turn.amount, ranked.seconds));
  }
}

void SchedulingPass::SetStart(WaitDecision& wait, std::optional<double> seconds) const {
  if (!seconds) return;
  const double error = snapshot_.rules.prediction_error;
  wait.start_in_seconds = seconds;
  wait.earliest_start_in_seconds = *seconds * std::max(1 - error, 0.0);
  wait.latest_start_in_seconds = *seconds * (1 + error);
}

void SchedulingPass::WaitForPlan(const RankedJob& ranked, const Status& status) {
  WaitDecision& wait = Wait(ranked, Reason::kPlanning, status.message());
  wait.for_planning = true;
  wait.given_up = WasGivenUp(status);
}

void SchedulingPass::AwaitPlan(const RankedJob& ranked, const Status& status) {
  WaitForPlan(ranked, status);
  if (ranked.job->planned_long || WasGivenUp(status) || !held_back_by_.empty()) return;
  HoldBack(ranked, /*by_planning=*/true);
}

void SchedulingPass::WaitInfeasible(const Candidate& candidate, const Status& status) {
  if (candidate.limited) {
    Wait(candidate.ranked, Reason::kWaitingForQuota,
         "what the limit of its queue leaves cannot run it: " + status.message());
    return;
  }
  std::string why = "the attached workers cannot run it: " + status.message();
  if (const int64_t spares = snapshot_.rules.spare_workers; spares > 0 && !candidate.job.recovers) {
    why +=
        "; " + std::to_string(spares) + " of them are kept for jobs that recover (--spare-workers)";
  }
  Wait(candidate.ranked, Reason::kWaitingForWorkers, std::move(why)).infeasible = true;
}

}  // namespace weft::coordinator
