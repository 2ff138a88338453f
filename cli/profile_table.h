#pragma once

#include "cli/output.h"
#include "worker/trainer/profile_report.h"

namespace weft::cli {

/// Prints where the time of the steps went and where the trace is; JSON and YAML are the report
/// itself.
void PrintProfile(const trainer::ProfileReport& report, OutputFormat format, std::ostream& out);

}  // namespace weft::cli
