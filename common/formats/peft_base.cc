#include "common/formats/peft_base.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/formats/huggingface_weights.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/peft_config.h"
#include "common/sha256.h"

namespace weft {
namespace {

constexpr char kBaseNameKey[] = "base_model_name_or_path";
constexpr char kOwnNameKey[] = "_name_or_path";

/// A text of an object; "": none.
std::string TextOf(const Json& object, const char* key) {
  const Json value = object.is_object() ? object.value(key, Json()) : Json();
  return value.is_string() ? value.get<std::string>() : "";
}

/// Whether it may be the name of a network of the hub, "owner/name" or "name".
bool IsHubName(std::string_view name) {
  return !name.empty() && name.front() != '/' && name.front() != '.' && name.front() != '~' &&
         name.find('\\') == std::string_view::npos &&
         std::count(name.begin(), name.end(), '/') <= 1;
}

/// The name that the config.json of a folder gives to its network; "": none.
std::string NameIn(Env& env, const std::string& folder) {
  const Result<std::string> text = ReadFile(env, JoinPath(folder, "config.json"));
  const Result<Json> config = text.ok() ? ParseJson(*text) : Result<Json>(text.status());
  return config.ok() ? TextOf(*config, kOwnNameKey) : "";
}

}  // namespace

Result<std::string> HashOfBase(Env& env, const std::string& folder, const ModelSpec& model) {
  WEFT_ASSIGN_OR_RETURN(const ImportedHead head, ReadHead(env, folder));
  std::string lines;
  std::string name;  // of the tensor whose values are waited for
  std::vector<float> values;
  const auto add_line = [&] {
    if (name.empty()) return;
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    lines +=
        name + " " + Sha256Hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) + "\n";
  };
  const auto buffer = [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
    add_line();
    name = tensor.name;
    values.assign(ElementCount(tensor), 0);
    return std::span(values);
  };
  WEFT_RETURN_IF_ERROR(
      ImportModel(env, folder, model, buffer,
                  HasHead(head, model) ? HeadWeights::kFromFile : HeadWeights::kLeaveAsTheyAre));
  add_line();
  return Sha256Hex(lines);
}

Status CheckBaseName(Env& env, const Json& config, const std::string& base_folder) {
  std::string wanted = TextOf(config, kBaseNameKey);
  if (wanted.empty() || base_folder.empty()) return OkStatus();
  // A folder that is here has a name of its own, perhaps.
  if (env.FileExists(JoinPath(wanted, "config.json"))) wanted = NameIn(env, wanted);
  const std::string given = NameIn(env, base_folder);
  if (!IsHubName(wanted) || !IsHubName(given) || BaseName(wanted) == BaseName(given)) {
    return OkStatus();
  }
  return InvalidError(std::string(kPeftConfigName) + " has " + kBaseNameKey + " " + wanted +
                      ", and " + base_folder + " is " + given + " (" + kOwnNameKey +
                      " of its config.json); hint: model.import_path of " + wanted +
                      ", or clear one of these fields if the two are the same network");
}

Status CheckBaseHash(Env& env, const std::string& folder, const std::string& base_folder,
                     const ModelSpec& model) {
  const std::string path = JoinPath(folder, kAdapterWeightsName);
  if (!env.FileExists(path)) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(env, path));
  const auto wanted = file.metadata().find(kBaseHashKey);
  if (wanted == file.metadata().end()) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::string given, HashOfBase(env, base_folder, model));
  if (given == wanted->second) return OkStatus();
  return InvalidError("the adapter in " + folder + " was trained on other weights (" +
                      kBaseHashKey + " " + wanted->second + ") than those in " + base_folder +
                      " (" + given +
                      "); hint: model.import_path of the network that it was trained on");
}

}  // namespace weft
