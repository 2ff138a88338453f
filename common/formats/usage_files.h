#pragma once

#include <string>

#include "common/env.h"
#include "common/json.h"
#include "common/status.h"

namespace weft {

/// How an imported model is to be used, as the files next to its weights say; kept for exports of
/// what was trained from it. Objects; empty where there is no such file. What the files next to its
/// tokenizer say is in TokenizerConfig.
struct UsageFiles {
  Json config = Json::object();             ///< config.json
  Json generation_config = Json::object();  ///< generation_config.json
};

/// Reads those of a model's folder; all empty when `model_folder` is "". kInvalid names a file that
/// is not a JSON object.
Result<UsageFiles> ReadUsageFiles(Env& env, const std::string& model_folder);

/// Writes `run_dir`/imported.json, so that the run folder alone is enough for an export.
Status SaveUsageFiles(Env& env, const std::string& run_dir, const UsageFiles& files);

/// Reads it back; all empty without the file. kCorrupt when it is something else.
Result<UsageFiles> LoadUsageFiles(Env& env, const std::string& run_dir);

}  // namespace weft
