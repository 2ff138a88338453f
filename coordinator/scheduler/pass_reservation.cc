// The place that is kept for the first job that waits: who gives way to it, and who may use it
// until then.
#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/scheduler/pass.h"

namespace weft::coordinator {
namespace {

/// Jobs that another place is looked for the reservation for in one pass.
constexpr int kMoving = 16;

}  // namespace

bool SchedulingPass::YieldsToReservation(const RankedJob& ranked, const Plan& plan) const {
  const SchedulerRules& rules = snapshot_.rules;
  const double until = reservation_->seconds;
  const double restart = 2 * rules.scale_up.restart.assumed_start_seconds;
  if (!ranked.job->spec->scheduling.preemptible || until < rules.protected_seconds + restart) {
    return false;
  }
  // As it will be then.
  ActiveJob then;
  then.preemptions = ranked.job->preemptions;
  then.job.attempt_seconds = until;
  RankedActive active;
  active.job = &then;
  active.turn = turns_.Of(ranked.turn.queue, ranked.turn.priority, AmountOf(plan),
                          SecondsBy(ranked, plan) - until, ranked.job->submitted_at);
  const Claim claim =
      ClaimOf(reserved_turn_, std::numeric_limits<double>::infinity(), active, held_, rules);
  return claim == Claim::kPriority || claim == Claim::kShorter;
}

std::optional<double> SchedulingPass::YieldsIn(const RankedActive& active, double then,
                                               const QueueTree& left) const {
  const double settles =
      std::max(0.0, snapshot_.rules.protected_seconds - active.job->job.attempt_seconds);
  const auto yields = [&](double seconds) {
    RankedActive later = active;
    later.in_seconds = seconds;
    later.turn = turns_.Of(active.turn.queue, active.turn.priority, active.turn.amount,
                           std::max(0.0, active.seconds_left - then), active.job->submitted_at);
    return ClaimOf(reserved_turn_, std::numeric_limits<double>::infinity(), later, left,
                   snapshot_.rules) != Claim::kNone;
  };
  if (!yields(settles)) return std::nullopt;
  return settles == 0 || yields(0) ? 0 : settles;
}

std::optional<Reservation> SchedulingPass::ReserveFor(const Plan& plan,
                                                      const Outlook& outlook) const {
  // A job that may be displaced now may be too near its end when its place is needed. So at first
  // all count that might give way, and then those that still will at the time that this leads to.
  constexpr int kRounds = 4;
  std::vector<const RankedActive*> yielding;
  for (const RankedActive& active : active_) yielding.push_back(&active);
  std::optional<Reservation> found;
  double then = 0;
  for (int round = 0; round <= kRounds; ++round) {
    const size_t before = yielding.size();
    QueueTree left = held_;
    std::set<const Plan*> given_up;
    std::vector<std::pair<double, const RankedActive*>> later;
    std::erase_if(yielding, [&](const RankedActive* active) {
      const std::optional<double> seconds =
          round < kRounds ? YieldsIn(*active, then, left) : std::nullopt;
      if (!seconds) return true;
      left.Give(active->turn.queue, active->turn.amount);
      given_up.insert(active->job->job.plan);
      if (*seconds > 0) later.emplace_back(*seconds, active);
      return false;
    });
    if (round > 0 && yielding.size() == before) break;
    Outlook shown = outlook;
    const std::vector<const Plan*> removed = shown.releases.Remove(given_up);
    std::set<const Plan*> at_once(removed.begin(), removed.end());
    for (const auto& [seconds, active] : later) {
      if (at_once.erase(active->job->job.plan) == 0) continue;
      shown.releases.Add(seconds, *active->job->job.plan, active->job->id);
    }
    for (const Plan* each : at_once) shown.pool.Release(*each);
    found = shown.releases.Reserve(plan, std::move(shown.pool));
    if (!found || yielding.empty()) break;
    then = found->seconds;
  }
  return found;
}

bool SchedulingPass::LeavesReservation(const Plan& plan, double seconds) const {
  if (held_back_by_.empty()) return true;
  if (!reservation_) return false;
  return (seconds > 0 && seconds <= reservation_->seconds) || reservation_->left.Fits(plan);
}

std::optional<Reservation> SchedulingPass::ReservationBy(const Outlook& outlook) const {
  std::optional<Reservation> found = ReserveFor(reservation_->plan, outlook);
  if (found && found->seconds > reservation_->seconds) found.reset();
  return found;
}

bool SchedulingPass::StartMovingReservation(const RankedJob& ranked, const Plan& plan) {
  if (moving_ >= kMoving) return false;
  ++moving_;
  Outlook outlook = outlook_;
  outlook.pool.Take(plan);
  if (const double seconds = SecondsBy(ranked, plan); seconds > 0) {
    outlook.releases.Add(seconds, plan, ranked.job->id);
  }
  std::optional<Reservation> moved = ReservationBy(outlook);
  if (!moved) return false;
  reservation_.reset();  // it has nothing left for the plan
  Start(ranked, plan);
  reservation_ = std::move(moved);
  return true;
}

}  // namespace weft::coordinator
