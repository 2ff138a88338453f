#pragma once

#include <string>

#include "common/env.h"

namespace weft::coordinator {

/// The first thing in a run folder, or among its checkpoints, that no job writes: a folder of
/// another name (an export, a checkpoint that a user set aside), or weights next to the
/// checkpoints. Empty when there is none, or no folder.
Result<std::string> ForeignContent(Env& env, const std::string& run_dir);

/// Whether a path is in a run folder, by its text alone: the files are those of a worker, and may
/// not be visible here.
bool IsInRunFolder(const std::string& path, const std::string& run_dir);

/// Deletes a run folder with all that is in it; one that is not there is fine. kInvalid unless it
/// lies directly in `run_root`.
Status DeleteRunFolder(Env& env, const std::string& run_root, const std::string& run_dir);

}  // namespace weft::coordinator
