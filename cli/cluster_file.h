#pragma once

#include <string>

#include "common/spec/cluster_spec.h"
#include "common/spec/plan_query.h"
#include "common/status.h"

namespace weft::cli {

/// Machines of a file that are alike.
struct MachineGroup {
  int64_t count = 1;
  int64_t gpus = 0;
  WorkerProfile worker;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("count", "Machines like this one; of several, the name of each ends in a number.")
              .Range(1, 65536),
          self.count);
    visit(Field("gpus",
                "GPUs like the one of `devices`, each with that one's links to all others; 0: "
                "those of `devices`.")
              .Range(0, 64),
          self.gpus);
    WorkerProfile::Fields(self.worker, visit);
  }
};

/// The machines of a file, and under `costs` what they cost.
struct ClusterFile {
  ClusterProfile cluster;
  ClusterCosts costs = {};
};

/// Reads YAML or JSON strictly, a list of MachineGroups under `workers` and one of LinkSpecs under
/// `links`; errors name file, line and field.
Result<ClusterFile> LoadClusterFile(const std::string& path);
/// A file that is the `costs` of a cluster file by itself.
Result<ClusterCosts> LoadCostsFile(const std::string& path);

}  // namespace weft::cli
