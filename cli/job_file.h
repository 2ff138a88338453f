#pragma once

#include <string>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft::cli {

/// Reads a job file (YAML or JSON; "-" is standard input) and checks it whole. Relative paths in it
/// are taken from the file's folder (from the current one for standard input) and made absolute.
/// Errors name file, line and field.
Result<JobSpec> LoadJobFile(const std::string& path);

}  // namespace weft::cli
