#pragma once

#include <string>

#include "common/env.h"
#include "common/json.h"
#include "common/status.h"

namespace weft {

/// How an imported model and its tokenizer are to be used, as the files beside the weights say;
/// kept for exports of what was trained from it. Objects; empty where there is no such file.
struct UsageFiles {
  Json config = Json::object();             ///< config.json
  Json generation_config = Json::object();  ///< generation_config.json
  Json tokenizer_config = Json::object();   ///< tokenizer_config.json and special_tokens_map.json
  std::string chat_template;                ///< chat_template.jinja
};

/// Reads those of a model's folder and those beside its tokenizer, `tokenizer_path` (a file or a
/// folder); either may be "". kInvalid names a file that is not a JSON object.
Result<UsageFiles> ReadUsageFiles(Env& env, const std::string& model_folder,
                                  const std::string& tokenizer_path);

/// Writes `run_dir`/imported.json, so that the run folder alone is enough for an export.
Status SaveUsageFiles(Env& env, const std::string& run_dir, const UsageFiles& files);

/// Reads it back; all empty without the file. kCorrupt when it is something else.
Result<UsageFiles> LoadUsageFiles(Env& env, const std::string& run_dir);

}  // namespace weft
