#pragma once

#include <cstdint>
#include <string>

#include "cli/command.h"
#include "common/status.h"

namespace weft::cli {

/// Folder of a checkpoint: `what` is that folder, a run folder, or a job the coordinator knows.
/// `step` picks one; negative: the newest. Steps of a job are those of all its phases together,
/// those of a run folder are its own.
Result<std::string> FindCheckpoint(const Session& session, const std::string& what, int64_t step);

}  // namespace weft::cli
