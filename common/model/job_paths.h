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

/// OK when each path that the job names lies below one of `roots`, after symbolic links and "..".
/// ConfinedEnv holds what is found in these places to the same roots. No roots: anything goes.
/// `hint` says where roots are given.
Status CheckPaths(const JobSpec& job, const std::vector<std::string>& roots,
                  const std::string& hint);

/// The same of one path.
Status CheckPath(const JobPath& item, const std::vector<std::string>& roots,
                 const std::string& hint);

/// OK when the id of a job may be a part of a file's name: a-z, 0-9 and dashes.
Status CheckJobId(const std::string& id);

/// Whether a path is absolute and lies below one of the folders.
bool IsBelow(const std::string& path, const std::vector<std::string>& roots);

}  // namespace weft
