#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"

namespace weft::planner {

/// GPUs that can take ranks, or machines where processors compute.
int64_t CountDevices(const ClusterProfile& cluster, bool on_devices);

/// The largest machines of `cluster` with no more than `count` devices, in the order in which the
/// search fills them; the last one is left with as many of its GPUs as count, near ones.
ClusterProfile FirstDevices(const ClusterProfile& cluster, bool on_devices, int64_t count);

/// Machines that a plan runs on, with the ranks on each, in order.
struct UsedMachine {
  const WorkerProfile* worker = nullptr;
  int64_t ranks = 0;
};
std::vector<UsedMachine> MachinesOf(const Plan& plan, const ClusterProfile& cluster);

/// Machines grouped with those that differ in nothing but names; in the order of their first ones.
std::vector<ClusterProfile> KindsOf(const ClusterProfile& cluster);

/// Lines of the job that ask for the choices of its `plan`, where it does not yet.
std::vector<std::string> LinesOf(const JobSpec& job, const Plan& plan);

}  // namespace weft::planner
