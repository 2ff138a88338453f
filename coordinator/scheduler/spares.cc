#include "coordinator/scheduler/spares.h"

#include <algorithm>
#include <string>
#include <vector>

namespace weft::coordinator {

FreeMap WithoutSpares(const ClusterProfile& cluster, FreeMap free, int64_t spares) {
  if (spares <= 0) return free;
  std::vector<std::string> idle;
  for (const WorkerProfile& worker : cluster.workers) {
    const auto room = free.find(worker.worker_id);
    if (room != free.end() && room->second.cores == worker.cores) idle.push_back(worker.worker_id);
  }
  std::sort(idle.rbegin(), idle.rend());
  const auto kept = std::min(spares, static_cast<int64_t>(std::ssize(idle)));
  for (int64_t i = 0; i < kept; ++i) free.erase(idle[static_cast<size_t>(i)]);
  return free;
}

}  // namespace weft::coordinator
