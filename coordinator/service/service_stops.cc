// How attempts end that do not end by themselves: workers that drain, ranks that hang or do not
// stop when they are asked to; and when a job that failed is tried again.
#include <algorithm>
#include <cmath>

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/recovery/peers.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Ranks that were asked to stop and show life (a long step, a large checkpoint) get this many
/// times the limit.
constexpr int kMostStopRounds = 10;

/// They may be silent for this many of their longest steps.
constexpr double kStepsToStop = 3;

/// The loop is never at rest for so long unless it is held up: it counts times every five seconds.
constexpr std::chrono::seconds kLongestNap{10};

}  // namespace

std::vector<PlacementActivity> Service::Activities(const LiveJob& live) const {
  std::vector<PlacementActivity> activities;
  for (const PlacementRecord& placement : live.current.attempt->placements) {
    if (IsGone(placement.state)) continue;
    const auto track = live.placements.find(placement.worker_id);
    activities.push_back(track == live.placements.end() ? PlacementActivity{}
                                                        : track->second.activity);
    activities.back().worker_id = placement.worker_id;
  }
  return activities;
}

ActivityForecast Service::ForecastOfAttempt(const LiveJob& live) const {
  const AttemptRecord& attempt = *live.current.attempt;
  std::vector<MachineRates> machines;
  for (const PlacementRecord& placement : attempt.placements) {
    MachineRates rates{.ranks = std::ssize(placement.ranks)};
    if (const auto it = sessions_.find(placement.worker_id); it != sessions_.end()) {
      rates.copy_bytes_per_second = it->second.profile.copy_bytes_per_second;
      rates.disk_write_bytes_per_second = it->second.profile.disk_write_bytes_per_second;
    }
    machines.push_back(rates);
  }
  return ForecastOf(attempt.plan, live.Phase().train.global_batch, machines);
}

void Service::NoteAwake() {
  const Duration now = clock_.Monotonic();
  if (now - looked_at_ > kLongestNap) awake_since_ = now;
  looked_at_ = now;
}

void Service::ForgiveOutages(std::vector<PlacementActivity>& activities) const {
  const Duration now = clock_.Monotonic();
  for (PlacementActivity& placement : activities) {
    const auto session = sessions_.find(placement.worker_id);
    if (placement.activity == "training" || session == sessions_.end()) continue;
    const Duration since = std::max(session->second.registered_at, awake_since_);
    placement.silent_seconds = std::min(placement.silent_seconds, ToSeconds(now - since));
  }
}

void Service::CheckHang(const std::string& job_id) {
  NoteAwake();
  const auto it = live_.find(job_id);
  if (it == live_.end() || !it->second->current.attempt) return;
  LiveJob& live = *it->second;
  const JobState state = live.current.job.state;
  const AttemptRecord& attempt = *live.current.attempt;
  if ((state != JobState::kStarting && state != JobState::kRunning) || live.busy) return;
  // The lease is for workers that are out of reach.
  if (!std::all_of(attempt.placements.begin(), attempt.placements.end(),
                   [this](const PlacementRecord& placement) {
                     const auto session = sessions_.find(placement.worker_id);
                     return IsGone(placement.state) ||
                            (session != sessions_.end() && session->second.link);
                   })) {
    return;
  }
  std::vector<PlacementActivity> activities = Activities(live);
  live.quiet.See(activities);
  ForgiveOutages(activities);
  const std::optional<std::string> why =
      FindHang(activities, ForecastOfAttempt(live), live.quiet, options_.hang);
  if (!why) return;
  WEFT_LOG_WARNING << "job " << job_id << ", attempt " << attempt.epoch << ": " << *why;
  if (const std::optional<OddRank> odd = FindOddRank(activities)) {
    Blame(odd->worker_id, job_id, Reason::kHung);
  }
  Change(
      job_id,
      [this, epoch = attempt.epoch, why = *why](const JobCase& current) {
        return InterruptAttempt(current, epoch, Reason::kHung, why, clock_.UnixSeconds());
      },
      [](const Status&) {}, true);
}

void Service::DrainJobsOn(const std::string& worker_id) {
  for (const std::string& job_id : JobsOn(worker_id)) {
    const auto it = live_.find(job_id);
    if (it == live_.end() || !it->second->current.attempt) continue;
    Change(
        job_id,
        [this, epoch = it->second->current.attempt->epoch, worker_id](const JobCase& current) {
          const std::string why = "worker " + worker_id + " drains";
          const double now = clock_.UnixSeconds();
          return MaySpare(current, epoch, worker_id)
                     ? LetPeersGo(current, epoch, {worker_id}, why, now)
                     : DrainAttempt(current, epoch, why, now);
        },
        [](const Status&) {}, true);
  }
}

void Service::ExpectStop(const std::string& job_id, int64_t epoch, int round) {
  loop_.PostAfter(options_.stop_limit,
                  [this, job_id, epoch, round] { CheckStop(job_id, epoch, round); });
}

void Service::CheckStop(const std::string& job_id, int64_t epoch, int round) {
  const auto it = live_.find(job_id);
  if (it == live_.end() || !it->second->current.attempt ||
      it->second->current.attempt->epoch != epoch) {
    return;
  }
  const bool asked = std::any_of(outbox_.begin(), outbox_.end(), [&](const auto& entry) {
    const IntentRecord& intent = entry.second;
    return intent.job_id == job_id && intent.epoch == epoch && intent.kind == IntentKind::kStop &&
           intent.graceful;
  });
  if (!asked) return;
  const LiveJob& live = *it->second;
  const double predicted = live.current.attempt->plan.prediction.step_seconds;
  const std::vector<PlacementActivity> placements = Activities(live);
  const bool alive =
      std::any_of(placements.begin(), placements.end(), [&](const PlacementActivity& placement) {
        const double step = std::max(predicted, placement.longest_step_seconds);
        return !placement.activity.empty() &&
               placement.silent_seconds <
                   std::max(ToSeconds(options_.stop_limit), kStepsToStop * step);
      });
  if (alive && round < kMostStopRounds) return ExpectStop(job_id, epoch, round + 1);
  const std::string why = "ranks did not stop within " +
                          std::to_string(std::llround(round * ToSeconds(options_.stop_limit))) +
                          " s: they are killed";
  WEFT_LOG_WARNING << "job " << job_id << ", attempt " << epoch << ": " << why;
  Change(
      job_id,
      [this, epoch, why](const JobCase& current) {
        return KillAttempt(current, epoch, why, clock_.UnixSeconds());
      },
      [](const Status&) {}, true);
}

void Service::WaitForRetry(LiveJob& live) {
  live.retry_from.reset();
  const std::optional<double> at = RetryAt(live.current);
  if (!at) return;
  const double longest = options_.retry.most_seconds;  // also when the wall clock was set back
  const double seconds = std::clamp(*at - clock_.UnixSeconds(), 0.0, longest);
  const auto delay = FromSeconds(seconds);
  live.retry_from = clock_.Monotonic() + delay;
  loop_.PostAfter(delay, [this] { ScheduleSoon(); });
}

bool Service::MayStart(const LiveJob& live) const {
  return !live.retry_from || clock_.Monotonic() >= *live.retry_from;
}

Result<std::vector<EventRecord>> Service::Events(const std::string& job_id) {
  WEFT_RETURN_IF_ERROR(store_.OwnerOf(job_id).status());
  return store_.ListEvents(job_id);
}

}  // namespace weft::coordinator
