#include "coordinator/planner/report/save_interval.h"

#include <algorithm>
#include <map>
#include <string>

#include "common/spec/saving_ranks.h"

namespace weft::planner {
namespace {

constexpr double kSecondsPerHour = 3600;

/// From a failure to training again, where no start of the job has been seen.
constexpr double kAssumedRestartSeconds = 60;

/// The longest of any machine in use; `seconds_of` takes the number of its ranks that save, of
/// `saving` in all.
template <class SecondsOf>
double Longest(const ClusterProfile& cluster, const Plan& plan, int64_t saving,
               SecondsOf seconds_of) {
  std::map<std::string, int64_t> ranks;
  for (const std::string& worker : plan.rank_workers) ++ranks[worker];
  double longest = 0;
  for (const WorkerProfile& worker : cluster.workers) {
    const auto found = ranks.find(worker.worker_id);
    if (found != ranks.end())
      longest = std::max(longest, seconds_of(worker, std::min(found->second, saving)));
  }
  return longest;
}

double SecondsFor(double bytes, double bytes_per_second) {
  return bytes_per_second > 0 ? bytes / bytes_per_second : 0;
}

}  // namespace

SaveCosts ExpectedSaveCosts(const TrainSpec& train, const ClusterProfile& cluster, const Plan& plan,
                            int64_t devices) {
  const int64_t saving = SavingRanks(train, plan);
  const MemoryBreakdown& memory = plan.prediction.memory_per_rank;
  const auto state = static_cast<double>(memory.parameters_bytes + memory.optimizer_bytes);
  SaveCosts costs;
  costs.stall_seconds =
      Longest(cluster, plan, saving, [&](const WorkerProfile& worker, int64_t ranks) {
        if (plan.device == "cpu") {
          // A copy reads and writes each byte.
          return SecondsFor(2 * state * static_cast<double>(ranks), worker.copy_bytes_per_second);
        }
        double slowest = 0;
        for (const DeviceSpec& device : worker.devices) {
          if (!device.unusable.empty()) continue;
          slowest = std::max(slowest, SecondsFor(state, device.download_bytes_per_second));
        }
        return slowest;
      });
  costs.background_seconds =
      Longest(cluster, plan, saving, [&](const WorkerProfile& worker, int64_t ranks) {
        return SecondsFor(state * static_cast<double>(ranks), worker.disk_write_bytes_per_second);
      });
  costs.restart_seconds = kAssumedRestartSeconds;
  costs.between_failures_seconds = kDeviceHoursBetweenFailures * kSecondsPerHour /
                                   static_cast<double>(std::max<int64_t>(devices, 1));
  costs.step_seconds = plan.prediction.step_seconds;
  return costs;
}

}  // namespace weft::planner
