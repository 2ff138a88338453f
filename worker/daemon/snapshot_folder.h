#pragma once

#include <chrono>
#include <set>
#include <string>

#include "common/status.h"

namespace weft::daemon {

/// Where the ranks of the daemon on `data_dir` keep snapshots (checkpoint.peer_every_steps): a
/// folder of its own in `parent`, which is in memory. Empty when `parent` is.
std::string SnapshotFolder(const std::string& parent, const std::string& data_dir);

/// Makes that folder, for this user alone. kInvalid with a hint when that is not possible.
Status MakeSnapshotFolder(const std::string& folder);

/// Deletes the snapshots of runs in `folder` that nothing was added to for `age`, except those of
/// the jobs `running` here: of a job that goes on elsewhere nobody else does.
void ForgetOldSnapshots(const std::string& folder, const std::set<std::string>& running,
                        std::chrono::seconds age);

/// Deletes the folder if no snapshots are in it.
void LeaveSnapshotFolder(const std::string& folder);

}  // namespace weft::daemon
