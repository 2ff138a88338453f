// Workers that fall silent: their leases, and how many there are of each state.
#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "coordinator/recovery/peers.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// By WorkerState.
constexpr const char* kWorkerStateNames[kWorkerStates] = {"ready", "disconnected", "lost"};

}  // namespace

void Service::ArmLeaseTimer() {
  std::optional<Duration> next = leases_.NextDeadline();
  if (!next || (lease_timer_ && *lease_timer_ <= *next)) return;
  lease_timer_ = *next;
  loop_.PostAfter(std::max(Duration(0), *next - clock_.Monotonic()), [this] { CheckLeases(); });
}

void Service::CheckLeases() {
  lease_timer_.reset();
  for (const LeaseTable::Change& change : leases_.TakeChanges()) {
    const std::string& id = change.worker_id;
    bool expired = change.phase == LeaseTable::Phase::kExpired;
    if (expired) {
      metrics_.LeaseExpired();
      WEFT_LOG_WARNING << "the lease of worker " << id << " ran out";
      std::lock_guard lock(view_mutex_);
      sessions_[id].lost = true;
      CountWorker(sessions_[id]);
    }
    bool blamed = false;
    for (const std::string& job_id : JobsOn(id)) {
      auto it = live_.find(job_id);
      if (it == live_.end() || !it->second->current.attempt) continue;
      int64_t epoch = it->second->current.attempt->epoch;
      if (!expired) {
        LoseShare(job_id, epoch, id, "its lease and the margin have passed", Reason::kWorkerLost);
        continue;
      }
      // One failure, however many jobs it ends.
      if (!std::exchange(blamed, true)) Blame(id, job_id, Reason::kWorkerLost);
      Change(
          job_id,
          [this, epoch, id](const JobCase& current) -> Result<Transaction> {
            // It goes on without them once they are known to be gone.
            if (MaySpare(current, epoch, id)) return Transaction{};
            return InterruptAttempt(current, epoch, Reason::kWorkerLost,
                                    "the lease of worker " + id + " ran out", clock_.UnixSeconds());
          },
          [](const Status&) {}, true);
    }
  }
  ArmLeaseTimer();
}

void Service::CountWorker(Session& session) {
  if (session.counted == session.State()) return;
  UncountWorker(session);
  session.counted = session.State();
  const auto state = static_cast<size_t>(session.State());
  metrics_.SetWorkers(kWorkerStateNames[state], ++worker_counts_[state]);
}

void Service::UncountWorker(Session& session) {
  if (!session.counted) return;
  const auto state = static_cast<size_t>(*session.counted);
  metrics_.SetWorkers(kWorkerStateNames[state], --worker_counts_[state]);
  session.counted.reset();
}

}  // namespace weft::coordinator
