#pragma once

#include <string>

#include "common/spec/cluster_spec.h"
#include "common/spec/plan_query.h"
#include "common/status.h"

namespace weft::cli {

/// The machines of a file, and under `costs` what they cost.
struct ClusterFile {
  ClusterProfile cluster;
  ClusterCosts costs = {};

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    ClusterProfile::Fields(self.cluster, visit);
    visit(Field("costs", "What the machines cost."), self.costs);
  }
};

/// Reads YAML or JSON strictly; errors name file, line and field.
Result<ClusterFile> LoadClusterFile(const std::string& path);
/// A file that is the `costs` of a cluster file by itself.
Result<ClusterCosts> LoadCostsFile(const std::string& path);

}  // namespace weft::cli
