#include "worker/trainer/class_names.h"

#include "common/json.h"

namespace weft::trainer {
namespace {

std::string PathIn(const std::string& run_dir) {
  return JoinPath(run_dir, "classes.json");
}

}  // namespace

Status WriteClassNames(Env& env, const std::string& run_dir,
                       const std::vector<std::string>& names) {
  const std::string text = Json(names).dump(2, ' ', false, Json::error_handler_t::replace);
  return WriteFileAtomic(env, PathIn(run_dir), text + "\n");
}

Result<std::vector<std::string>> ReadClassNames(Env& env, const std::string& run_dir) {
  const std::string path = PathIn(run_dir);
  std::vector<std::string> names;
  if (!env.FileExists(path)) return names;
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path));
  Result<Json> json = ParseJson(text);
  if (!json.ok() || !json->is_array()) return CorruptError(path + " is not a list of names");
  for (const Json& name : *json) {
    if (!name.is_string()) return CorruptError(path + " is not a list of names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

}  // namespace weft::trainer
