#pragma once

#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"

namespace weft::trainer {

/// Writes `run_dir`/classes.json, a list of the names of the classes by number, so that the run
/// folder alone is enough to use the model.
Status WriteClassNames(Env& env, const std::string& run_dir, const std::vector<std::string>& names);

/// Reads it back; none without the file. kCorrupt when it is something else.
Result<std::vector<std::string>> ReadClassNames(Env& env, const std::string& run_dir);

}  // namespace weft::trainer
