#include "coordinator/planner/report/costs.h"

#include <algorithm>

#include "common/glob.h"
#include "coordinator/planner/report/devices.h"

namespace weft::planner {

RunningCost CostOf(const Plan& plan, const ClusterProfile& cluster, const ClusterCosts& costs) {
  RunningCost sum;
  for (const UsedMachine& machine : MachinesOf(plan, cluster)) {
    const std::string& id = machine.worker->worker_id;
    const auto found =
        std::find_if(costs.machines.begin(), costs.machines.end(),
                     [&](const MachineCost& cost) { return GlobMatches(cost.workers, id); });
    const MachineCost cost = found != costs.machines.end() ? *found : MachineCost{.workers = id};
    const double gpus = plan.device == "cpu" ? 0 : static_cast<double>(machine.ranks);
    const double price = cost.price_per_hour + gpus * cost.device_price_per_hour;
    const double watts = cost.watts + gpus * cost.device_watts;
    if (price == 0 && sum.unpriced.empty()) sum.unpriced = id;
    if (watts == 0 && sum.unmetered.empty()) sum.unmetered = id;
    sum.price_per_hour += price;
    sum.watts += watts;
  }
  if (!sum.unpriced.empty()) sum.price_per_hour = 0;
  if (!sum.unmetered.empty()) sum.watts = 0;
  return sum;
}

}  // namespace weft::planner
