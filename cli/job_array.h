#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/job_file.h"

namespace weft::cli {

/// The jobs of an array: the job of a file with other values in some fields. Each of `fields` is
/// "FIELD=V1,V2,...", values as in YAML; of several fields there is a job for each combination.
/// Jobs are named NAME-1, NAME-2, ... Their group is that of the file, or one that follows from
/// `request_id`; `limit` of them run at once, 0: as the file says. kInvalid names what is wrong.
Result<std::vector<JobSpec>> LoadJobArray(const std::string& path,
                                          const std::vector<std::string>& fields, int64_t limit,
                                          const std::string& request_id, DataCheck check);

}  // namespace weft::cli
