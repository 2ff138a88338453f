#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/full_match.h"
#include "common/json.h"
#include "common/status.h"

namespace weft {

/// What messages about a key of an adapter_config.json begin with: the key and its value, clipped.
std::string HasField(const std::string& key, const Json& value);

/// kInvalid: this setting is not computed.
Status NotComputed(const std::string& key, const Json& value);

/// kInvalid: peft has no adapter of this method for the layers of a gpt2.
Status NotOfConv1D(const std::string& method);

/// Whether it says the same as if its key were not there.
bool IsUnset(const Json& value);

/// Adds a list of names; kInvalid where it is another value.
Status ReadNames(const Json& config, const std::string& key, std::vector<std::string>& names);

Status ReadFlag(const Json& config, const std::string& key, bool& flag);

/// The largest alpha of model.peft, which configurations are read up to.
constexpr int64_t kLargestAlpha = 1'000'000;

/// The most patterns of a map that are read. Each is tried on each layer.
constexpr size_t kMostPatterns = 4096;

/// The value of a field of an adapter's configuration within the limits of model.peft; kInvalid
/// otherwise.
Result<int64_t> RankFrom(const std::string& key, const Json& rank);
Result<double> AlphaFrom(const std::string& key, const Json& alpha);

/// Reads a map of patterns by `from`, Result<T>(key, value). kInvalid where it has more than
/// kMostPatterns or one that is no regular expression.
template <class T, class From>
Status ReadPatterns(const Json& config, const std::string& key, const From& from,
                    std::map<std::string, T>& patterns) {
  const Json object = config.value(key, Json());
  if (IsUnset(object)) return OkStatus();
  if (!object.is_object()) return InvalidError(HasField(key, object) + ", which is no object");
  if (object.size() > kMostPatterns) {
    return InvalidError(HasField(key, object) + ", which has " + std::to_string(object.size()) +
                        " patterns; at most " + std::to_string(kMostPatterns) + " are read");
  }
  for (const auto& [pattern, value] : object.items()) {
    WEFT_ASSIGN_OR_RETURN(patterns[pattern], from(key + "." + pattern, value));
    const Result<bool> regular = FullMatch(pattern, "");
    if (!regular.ok()) return regular.status();
  }
  return OkStatus();
}

}  // namespace weft
