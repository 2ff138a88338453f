#pragma once

#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// A file or folder of a machine that a job names.
struct JobPath {
  std::string field;  ///< "data.train"
  std::string path;
};

/// All of them that are not empty, except the run folder, which the coordinator chooses.
std::vector<JobPath> PathsOf(const JobSpec& job);

/// OK when each path of the job lies below one of `roots`, after symbolic links and "..": nothing
/// else of this machine is read or written for it. No roots: anything goes. `hint` says where roots
/// are given.
Status CheckPaths(const JobSpec& job, const std::vector<std::string>& roots,
                  const std::string& hint);

/// Whether a path is absolute and lies below one of the folders.
bool IsBelow(const std::string& path, const std::vector<std::string>& roots);

}  // namespace weft
