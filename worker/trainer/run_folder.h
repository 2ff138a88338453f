#pragma once

#include <cstdint>
#include <string>

#include "common/env.h"

namespace weft::trainer {

/// Whether rank `rank` can write into the run folder and its checkpoints, which are made where they
/// are missing. kInvalid, with what to do, when permissions or a file in their place forbid it: no
/// retry helps. kExhausted for a full disk.
Status CheckRunFolder(Env& env, const std::string& run_dir, int64_t rank);

}  // namespace weft::trainer
