#pragma once

#include <chrono>
#include <set>
#include <string>

namespace weft::daemon {

/// Where the ranks of this daemon keep snapshots (checkpoint.peer_every_steps): a folder of its own
/// in `parent`, which is in memory. Makes it, for this user alone. Empty when `parent` is, or when
/// that fails, which is logged: jobs run without snapshots then.
std::string SnapshotFolder(const std::string& parent, const std::string& data_dir);

/// Deletes the snapshots of runs in `folder` that nothing was added to for `age`, but for those of
/// the jobs `running` here: of a job that goes on elsewhere nobody else does.
void ForgetOldSnapshots(const std::string& folder, const std::set<std::string>& running,
                        std::chrono::seconds age);

}  // namespace weft::daemon
