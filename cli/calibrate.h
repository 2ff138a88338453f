#pragma once

#include "cli/command.h"

namespace weft::cli {

struct CalibrateOptions {
  bool asked = false;    ///< weft plan --calibrate.
  bool dry_run = false;  ///< Report, but change nothing.
  bool reset = false;    ///< Back to the defaults instead.
};

/// Has the coordinator fit what its planner assumes to the runs that it keeps, and prints the
/// errors before and after.
ExitCode Calibrate(const Session& session, const CalibrateOptions& options);

}  // namespace weft::cli
