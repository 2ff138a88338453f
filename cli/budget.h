#pragma once

#include <string>

#include "cli/command.h"

namespace weft::cli {

struct BudgetOptions {
  std::string budget;        ///< See ParseBudget.
  std::string file;          ///< Job file that says family, vocabulary, context and batch; or none.
  std::string cluster;       ///< ClusterProfile with measured rates; empty: the attached workers.
  double device_flops = 0;   ///< Peak FLOP/s of a device; 0: what a worker measured.
  double utilization = 0.4;  ///< Share of the peak that training reaches.
};

/// Prints which model and how many tokens a budget is best spent on.
ExitCode ShowBudget(const Session& session, const BudgetOptions& options);

}  // namespace weft::cli
