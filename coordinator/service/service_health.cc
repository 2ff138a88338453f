// Machines that are checked before they get ranks, suspected after failures, and left out when they
// fail too often or a check.
#include <algorithm>
#include <set>
#include <utility>

#include "common/log.h"
#include "common/model/checkpoint_interval.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

constexpr double kSecondsPerHour = 3600;

/// Suspicion takes out one of this many workers, or one where there are fewer.
constexpr int64_t kLeastPerSuspect = 10;

/// Most checks are done in a fraction of this. Machines may join all the time, and no job waits
/// longer for them.
constexpr std::chrono::seconds kLongestWait(3);

/// GPUs, or machines without, that the plan uses.
int64_t DevicesOf(const Plan& plan) {
  if (!plan.rank_devices.empty()) return std::ssize(plan.rank_devices);
  return std::ssize(std::set<std::string>(plan.rank_workers.begin(), plan.rank_workers.end()));
}

}  // namespace

Status Service::LoadSuspicions() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<SuspicionRecord> records, store_.ListSuspicions());
  for (const SuspicionRecord& record : records) suspicions_.Load(record);
  ShowSuspicions();
  WEFT_ASSIGN_OR_RETURN(reliability_, store_.GetReliability());
  return OkStatus();
}

void Service::Blame(const std::string& worker_id, const std::string& job_id, Reason reason) {
  const double now = clock_.UnixSeconds();
  std::unique_lock lock(view_mutex_);
  std::optional<SuspicionRecord> record = suspicions_.Blame(worker_id, job_id, reason, now);
  if (!record) return;
  if (auto it = sessions_.find(worker_id); it != sessions_.end()) it->second.unchecked = true;
  const bool too_much = suspicions_.TooMuch(worker_id, now);
  lock.unlock();
  metrics_.SetSuspicion(worker_id, record->suspicion);
  StoreSuspicion(*record);
  if (too_much) {
    QuarantineSuspect(worker_id, "it failed too often lately, the last time with " +
                                     std::string(Name(reason)) +
                                     (job_id.empty() ? "" : " in job " + job_id));
  }
}

void Service::ForgetSuspicion(const std::string& worker_id) {
  const double now = clock_.UnixSeconds();
  std::unique_lock lock(view_mutex_);
  if (suspicions_.Of(worker_id, now) == 0) return;
  const SuspicionRecord none = suspicions_.Clear(worker_id, now);
  lock.unlock();
  metrics_.SetSuspicion(worker_id, 0);
  StoreSuspicion(none);
}

void Service::StoreSuspicion(const SuspicionRecord& record) {
  Transaction change;
  change.suspicion = record;
  store_.Commit(std::move(change), [this](const Result<CommitResult>& result) {
    if (!result.ok()) metrics_.StoreFailed();
  });
}

void Service::ShowSuspicions() {
  for (const auto& [worker, left] : suspicions_.All(clock_.UnixSeconds())) {
    metrics_.SetSuspicion(worker, left);
  }
}

void Service::QuarantineSuspect(const std::string& worker_id, const std::string& why) {
  const auto quarantined =
      std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
        return SchedulingOf(entry.first) == WorkerScheduling::kQuarantined;
      });
  if (quarantined > 0 && (quarantined + 1) * kLeastPerSuspect > std::ssize(sessions_)) {
    WEFT_LOG_WARNING << "worker " << worker_id << " is not quarantined, as " << quarantined
                     << " are already: " << why;
    return;
  }
  Quarantine(worker_id, why);
}

void Service::Quarantine(const std::string& worker_id, const std::string& why) {
  if (SchedulingOf(worker_id) == WorkerScheduling::kQuarantined) return;
  {
    // Before it is stored: nothing starts there meanwhile, and others that are suspected count it.
    std::lock_guard lock(view_mutex_);
    worker_scheduling_[worker_id] = {worker_id, WorkerScheduling::kQuarantined, why};
  }
  SetWorkerScheduling(worker_id, WorkerScheduling::kQuarantined, why,
                      [](const Result<WorkerView>&) {});
}

bool Service::MayTakeRanks(const std::string& worker_id, const Session& session) const {
  if (session.health_call != 0) return false;
  if (options_.health.limit.count() == 0 || !session.unchecked) return true;
  // One that works for others seems to be in order, and has no time.
  return !JobsOn(worker_id).empty();
}

void Service::CheckMachines() {
  if (options_.health.limit.count() == 0) return;
  const Duration now = clock_.Monotonic();
  for (auto& entry : sessions_) {
    const std::string& id = entry.first;
    Session& session = entry.second;
    const bool there = session.link && !session.lost && !session.draining && leases_.IsValid(id);
    if (!there || !session.unchecked || session.health_call != 0 || session.stale_ranks ||
        MustLeave(id) || session.check_from > now || !JobsOn(id).empty() ||
        IsMeasured(session.machine)) {
      continue;
    }
    if (suspicions_.TooMuch(id, clock_.UnixSeconds())) {
      loop_.Post([this, id] { QuarantineSuspect(id, "it failed too often lately"); });
    }
    session.health_call = next_check_++;
    ++checks_;
    if (!checking_since_) {
      checking_since_ = now;
      loop_.PostAfter(kLongestWait, [this] { ScheduleSoon(); });
    }
    session.link->CheckHealth(session.health_call, ToSeconds(options_.health.limit));
    // Half as long again, as the answer is under way.
    loop_.PostAfter(options_.health.limit * 3 / 2,
                    [this, id, call = session.health_call] { EndCheck(id, call, std::nullopt); });
  }
}

bool Service::AwaitsChecks() const {
  return checking_since_ && clock_.Monotonic() - *checking_since_ < kLongestWait;
}

void Service::ReportHealth(const std::shared_ptr<WorkerLink>& link, HealthAnswer answer) {
  loop_.Post([this, link, answer = std::move(answer)] {
    std::string id;
    if (SessionOf(link, "health", &id) == nullptr) return;
    EndCheck(id, answer.request_id, answer);
  });
}

void Service::EndCheck(const std::string& worker_id, int64_t request_id,
                       const std::optional<HealthAnswer>& answer) {
  const auto it = sessions_.find(worker_id);
  if (it == sessions_.end() || it->second.health_call != request_id) return;
  Session& session = it->second;
  EndCall(session);
  if (!answer) {
    metrics_.MachineChecked("unanswered");
    WEFT_LOG_WARNING << "worker " << worker_id << " did not answer when its machine was checked";
    session.check_from = clock_.Monotonic() + options_.health.retry;
    loop_.PostAfter(options_.health.retry, [this] { ScheduleSoon(); });
    Blame(worker_id, "", Reason::kMachineUnhealthy);
    return;
  }
  metrics_.MachineChecked(answer->error.empty() ? "passed" : "failed");
  if (answer->error.empty()) {
    session.unchecked = false;
    ScheduleSoon();
    return;
  }
  std::unique_lock lock(view_mutex_);
  const auto device = std::find_if(session.profile.devices.begin(), session.profile.devices.end(),
                                   [&](const DeviceSpec& d) { return d.index == answer->device; });
  if (device != session.profile.devices.end()) {
    device->unusable = answer->error;
    session.unchecked = false;
    WEFT_LOG_ERROR << "GPU " << answer->device << " of worker " << worker_id
                   << " is out of use: " << answer->error;
    lock.unlock();
    ScheduleSoon();
    return;
  }
  lock.unlock();
  Quarantine(worker_id, "its check failed: " + answer->error);
}

void Service::EndCheckOf(const std::shared_ptr<WorkerLink>& link) {
  const auto it = link_workers_.find(link.get());
  if (it != link_workers_.end()) EndCall(sessions_.at(it->second));
}

void Service::EndCall(Session& session) {
  if (std::exchange(session.health_call, 0) != 0 && --checks_ == 0) checking_since_.reset();
}

ReliabilityRecord Service::ReliabilityOf(const AttemptRecord& attempt) {
  const double seconds = std::max(0.0, attempt.ended_at.value_or(0) - attempt.started_at);
  return {seconds * static_cast<double>(DevicesOf(attempt.plan)), BlameOf(attempt.reason) > 0};
}

double Service::MeanSecondsBetweenFailures(const Plan& plan) const {
  // As if there had been one failure in the time in which others had one.
  const double device_seconds =
      kDeviceHoursBetweenFailures * kSecondsPerHour + reliability_.device_seconds;
  const auto failures = static_cast<double>(1 + reliability_.failures);
  return device_seconds / failures / static_cast<double>(std::max<int64_t>(1, DevicesOf(plan)));
}

}  // namespace weft::coordinator
