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

Result<UsageFiles> ReadUsageFiles(Env& env, const std::string& model_folder) {
  UsageFiles files;
  if (model_folder.empty()) return files;
  WEFT_RETURN_IF_ERROR(ReadObject(env, model_folder, "config.json", files.config));
  WEFT_RETURN_IF_ERROR(
      ReadObject(env, model_folder, "generation_config.json", files.generation_config));
  return files;
}

Status SaveUsageFiles(Env& env, const std::string& run_dir, const UsageFiles& files) {
  const Json json = {{"config", files.config}, {"generation_config", files.generation_config}};
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
                                 std::pair("generation_config", &files.generation_config)}) {
    if (!json.contains(key)) continue;
    if (!json[key].is_object()) {
      return CorruptError(SavedPath(run_dir) + " has a " + key + " that is not an object");
    }
    *out = json[key];
  }
  return files;
}

}  // namespace weft
