#include "coordinator/planner/report/frontier.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/hint.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/report/costs.h"
#include "coordinator/planner/report/devices.h"
#include "coordinator/planner/search.h"

namespace weft::planner {
namespace {

constexpr char kAllKinds[] = "all";

/// Machines that a frontier is made of, under the name that its points have.
struct Group {
  std::string name;
  ClusterProfile cluster;
};

std::vector<Group> GroupsOf(const ClusterProfile& cluster, bool on_devices) {
  std::vector<Group> groups;
  for (ClusterProfile& kind : KindsOf(cluster)) {
    if (CountDevices(kind, on_devices) == 0) continue;
    std::string name = kind.workers.front().worker_id;
    groups.push_back({std::move(name), std::move(kind)});
  }
  if (groups.size() == 1) {
    groups.front().name = kAllKinds;
  } else if (!groups.empty()) {
    groups.push_back({kAllKinds, cluster});
  }
  return groups;
}

/// Numbers of devices to plan for: doubled up to all, and between two of those the one halfway, in
/// whole machines of the largest size, so that there are at most twice as many as doublings.
std::vector<int64_t> CountsOf(const ClusterProfile& cluster, bool on_devices) {
  int64_t machine = 1;
  for (const WorkerProfile& worker : cluster.workers) {
    machine = std::max(machine, CountDevices({{worker}}, on_devices));
  }
  const int64_t all = CountDevices(cluster, on_devices);
  std::vector<int64_t> counts;
  for (int64_t devices = 1; devices < all; devices *= 2) {
    counts.push_back(devices);
    const int64_t halfway = (devices + devices / 2) / machine * machine;
    if (halfway > devices && halfway < all) counts.push_back(halfway);
  }
  counts.push_back(all);
  return counts;
}

FrontierPoint PointOf(const JobSpec& job, const ClusterProfile& part, const ClusterCosts& costs,
                      const Plan& plan) {
  const std::vector<UsedMachine> machines = MachinesOf(plan, part);
  FrontierPoint point;
  point.ranks = RankCount(plan.mesh);
  point.devices_used = plan.device == "cpu" ? std::ssize(machines) : point.ranks;
  point.mesh = MeshText(plan);
  point.tokens_per_second = plan.prediction.tokens_per_second;
  point.finish_seconds = static_cast<double>(job.train.steps) * plan.prediction.step_seconds;
  const RunningCost cost = CostOf(plan, part, costs);
  point.price_per_hour = cost.price_per_hour;
  point.price = cost.price_per_hour * point.finish_seconds / 3600;
  point.kilowatt_hours = cost.watts / 1000 * point.finish_seconds / 3600;
  return point;
}

void MarkBest(std::vector<FrontierPoint>& points) {
  const auto beats = [](const FrontierPoint& a, const FrontierPoint& b) {
    return a.tokens_per_second >= b.tokens_per_second && a.devices_used <= b.devices_used &&
           (a.tokens_per_second > b.tokens_per_second || a.devices_used < b.devices_used);
  };
  FrontierPoint* cheapest = nullptr;
  for (FrontierPoint& point : points) {
    if (!point.reason.empty()) continue;
    point.on_frontier = std::none_of(points.begin(), points.end(), [&](const FrontierPoint& other) {
      return other.reason.empty() && beats(other, point);
    });
    if (point.price > 0 && (cheapest == nullptr || point.price < cheapest->price)) {
      cheapest = &point;
    }
  }
  if (cheapest != nullptr) cheapest->cheapest = true;
}

}  // namespace

Result<std::vector<FrontierPoint>> FrontierOf(const JobSpec& job, const ClusterProfile& cluster,
                                              const ClusterCosts& costs, const PlanOn& plan) {
  const bool on_devices = WantsDevices(job, cluster);
  std::vector<FrontierPoint> points;
  for (const Group& group : GroupsOf(cluster, on_devices)) {
    for (const int64_t devices : CountsOf(group.cluster, on_devices)) {
      const ClusterProfile part = FirstDevices(group.cluster, on_devices, devices);
      const Result<PlanReport> report = plan(part);
      FrontierPoint point;
      if (report.ok()) {
        point = PointOf(job, part, costs, report->candidates.front().plan);
      } else if (report.status().code() == StatusCode::kExhausted) {
        point.reason = SplitHint(report.status().message()).text;
      } else {
        return report.status();
      }
      point.machines = group.name;
      point.devices = devices;
      points.push_back(std::move(point));
    }
  }
  MarkBest(points);
  return points;
}

ClusterProfile ClusterOfPoint(const JobSpec& job, const ClusterProfile& cluster,
                              const FrontierPoint& point) {
  const bool on_devices = WantsDevices(job, cluster);
  for (const Group& group : GroupsOf(cluster, on_devices)) {
    if (group.name == point.machines) {
      return FirstDevices(group.cluster, on_devices, point.devices);
    }
  }
  return cluster;
}

int64_t FewestDevices(const ClusterProfile& cluster, bool on_devices,
                      const std::function<bool(const ClusterProfile&)>& fits) {
  int64_t too_few = 0, enough = CountDevices(cluster, on_devices);
  if (enough == 0 || !fits(cluster)) return 0;
  while (enough - too_few > 1) {
    const int64_t middle = too_few + (enough - too_few) / 2;
    (fits(FirstDevices(cluster, on_devices, middle)) ? enough : too_few) = middle;
  }
  return enough;
}

}  // namespace weft::planner
