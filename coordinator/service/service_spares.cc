// Workers that are kept free, so that a job that loses machines goes on at once on others.
#include <algorithm>

#include "coordinator/service/service.h"

namespace weft::coordinator {

bool Service::Recovers(const std::string& job_id) const {
  const AttemptRecord* last = LastOfPhase(live_.at(job_id)->current);
  return last != nullptr && last->ended_at && HasFailed(*last);
}

void Service::LeaveSpares(SchedulerSnapshot& snapshot) const {
  std::vector<std::string> idle;
  for (const WorkerProfile& worker : snapshot.cluster.workers) {
    const auto free = snapshot.free.find(worker.worker_id);
    if (free != snapshot.free.end() && free->second.cores == worker.cores) {
      idle.push_back(worker.worker_id);
    }
  }
  // The last ones by name, so that a job finds the same workers free each time.
  std::sort(idle.rbegin(), idle.rend());
  const auto kept = std::min(options_.spare_workers, static_cast<int64_t>(std::ssize(idle)));
  for (int64_t i = 0; i < kept; ++i) snapshot.free.erase(idle[static_cast<size_t>(i)]);
}

std::vector<StartDecision> Service::StartRecovering(SchedulerSnapshot& snapshot) {
  if (options_.spare_workers == 0) return {};
  SchedulerSnapshot urgent = snapshot;
  std::erase_if(urgent.queue, [this](const QueuedJob& job) { return !Recovers(job.id); });
  if (urgent.queue.empty()) return {};
  std::vector<StartDecision> starts = Schedule(urgent, Known("")).starts;
  for (const StartDecision& start : starts) {
    TakeCapacity(start.plan, snapshot.free);
    std::erase_if(snapshot.queue, [&](const QueuedJob& job) { return job.id == start.job_id; });
  }
  return starts;
}

}  // namespace weft::coordinator
