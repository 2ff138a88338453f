#pragma once

#include <cstdint>
#include <string>

#include "common/env.h"

namespace weft::trainer {

/// Whether rank `rank` can write into the run folder and its checkpoints, which are made where they
/// are missing. kInvalid, with what to do, when permissions or a file in their place forbid it: no
/// retry helps. kExhausted for a full disk.
Status CheckRunFolder(Env& env, const std::string& run_dir, int64_t rank);

/// Notes that all attempts at a run have taken `seconds` so far: `<run_dir>/attempts.json`.
Status SaveRunSeconds(Env& env, const std::string& run_dir, double seconds);

/// What was noted last; 0 where nothing was. kInvalid for a file that holds anything else.
Result<double> ReadRunSeconds(Env& env, const std::string& run_dir);

}  // namespace weft::trainer
