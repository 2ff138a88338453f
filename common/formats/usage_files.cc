#include "common/formats/usage_files.h"

#include <utility>

namespace weft {
namespace {

constexpr uint64_t kMaxBytes = 16 << 20;

std::string SavedPath(const std::string& run_dir) {
  return JoinPath(run_dir, "imported.json");
}

/// Leaves `out` when there is no such file.
Status ReadObject(Env& env, const std::string& folder, const char* name, Json& out) {
  const std::string path = JoinPath(folder, name);
  if (!env.FileExists(path)) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(env, path, kMaxBytes));
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return json.status().WithContext(path);
  if (!json->is_object()) return InvalidError(path + " is not a JSON object");
  out = *std::move(json);
  return OkStatus();
}

}  // namespace

Result<UsageFiles> ReadUsageFiles(Env& env, const std::string& model_folder,
                                  const std::string& tokenizer_path) {
  UsageFiles files;
  if (!model_folder.empty()) {
    WEFT_RETURN_IF_ERROR(ReadObject(env, model_folder, "config.json", files.config));
    WEFT_RETURN_IF_ERROR(
        ReadObject(env, model_folder, "generation_config.json", files.generation_config));
  }
  if (tokenizer_path.empty()) return files;
  const std::string folder =
      env.ListDir(tokenizer_path).ok() ? tokenizer_path : DirName(tokenizer_path);
  WEFT_RETURN_IF_ERROR(ReadObject(env, folder, "tokenizer_config.json", files.tokenizer_config));
  Json special = Json::object();
  WEFT_RETURN_IF_ERROR(ReadObject(env, folder, "special_tokens_map.json", special));
  for (const auto& [key, value] : special.items()) {
    if (!files.tokenizer_config.contains(key)) files.tokenizer_config[key] = value;
  }
  const std::string jinja = JoinPath(folder, "chat_template.jinja");
  if (env.FileExists(jinja)) {
    WEFT_ASSIGN_OR_RETURN(files.chat_template, ReadFile(env, jinja, kMaxBytes));
  }
  return files;
}

Status SaveUsageFiles(Env& env, const std::string& run_dir, const UsageFiles& files) {
  const Json json = {{"config", files.config},
                     {"generation_config", files.generation_config},
                     {"tokenizer_config", files.tokenizer_config},
                     {"chat_template", files.chat_template}};
  return WriteFileAtomic(env, SavedPath(run_dir),
                         json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Result<UsageFiles> LoadUsageFiles(Env& env, const std::string& run_dir) {
  UsageFiles files;
  Json json = Json::object();
  Status read = ReadObject(env, run_dir, "imported.json", json);
  if (read.code() == StatusCode::kInvalid) return CorruptError(read.message());
  WEFT_RETURN_IF_ERROR(read);
  for (const auto& [key, out] : {std::pair("config", &files.config),
                                 std::pair("generation_config", &files.generation_config),
                                 std::pair("tokenizer_config", &files.tokenizer_config)}) {
    if (!json.contains(key)) continue;
    if (!json[key].is_object()) {
      return CorruptError(SavedPath(run_dir) + " has a " + key + " that is not an object");
    }
    *out = json[key];
  }
  if (json.contains("chat_template") && json["chat_template"].is_string()) {
    files.chat_template = json["chat_template"].get<std::string>();
  }
  return files;
}

}  // namespace weft
