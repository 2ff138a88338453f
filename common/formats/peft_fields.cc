#include "common/formats/peft_fields.h"

#include "common/formats/peft_config.h"
#include "common/text.h"

namespace weft {

std::string HasField(const std::string& key, const Json& value) {
  constexpr size_t kMostBytes = 200;  // of each: files may have more than a screen
  return std::string(kPeftConfigName) + " has " + ClipText(key, kMostBytes) + " " +
         ClipText(value.dump(), kMostBytes);
}

Status NotComputed(const std::string& key, const Json& value) {
  return InvalidError(HasField(key, value) +
                      ", which is not computed; hint: merge the adapter into its model with peft "
                      "(merge_and_unload) and import that");
}

Status NotOfConv1D(const std::string& method) {
  return InvalidError("peft has no " + method +
                      " for the layers of a gpt2 (Conv1D); hint: --format hf");
}

bool IsUnset(const Json& value) {
  return value.is_null() || value == false || value == 0 ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

Status ReadNames(const Json& config, const std::string& key, std::vector<std::string>& names) {
  const Json list = config.value(key, Json());
  if (list.is_null()) return OkStatus();
  if (!list.is_array()) return NotComputed(key, list);
  for (const Json& name : list) {
    if (!name.is_string()) return InvalidError(HasField(key, list) + ", which is no list of names");
    names.push_back(name.get<std::string>());
  }
  return OkStatus();
}

Status ReadFlag(const Json& config, const std::string& key, bool& flag) {
  const Json value = config.value(key, Json(false));
  if (!value.is_boolean()) {
    return InvalidError(HasField(key, value) + ", which is neither true nor false");
  }
  flag = value.get<bool>();
  return OkStatus();
}

Result<int64_t> RankFrom(const std::string& key, const Json& rank) {
  constexpr int64_t kMost = 4096;
  if (rank.is_number_integer() && rank >= 1 && rank <= kMost) return rank.get<int64_t>();
  return InvalidError(HasField(key, rank) + ", which is no number from 1 to " +
                      std::to_string(kMost));
}

Result<double> AlphaFrom(const std::string& key, const Json& alpha) {
  if (alpha.is_number() && alpha >= 0 && alpha <= kLargestAlpha) return alpha.get<double>();
  return InvalidError(HasField(key, alpha) + ", which is no number from 0 to " +
                      std::to_string(kLargestAlpha));
}

}  // namespace weft
