#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// The value of a key; nullptr when it is missing or null.
const Json* Find(const Json& config, const char* key);

/// Reads a whole number below 2^30. kInvalid when it is missing or something else.
Status ReadSize(const Json& config, const char* key, int64_t& out);

/// Reads a size under either of two names that transformers takes for one: kInvalid names both when
/// they differ.
Status ReadSize(const Json& config, const char* key, const char* alias, int64_t& out);

/// Reads a size; leaves `out` when the key is missing or null.
Status ReadOptionalSize(const Json& config, const char* key, int64_t& out);

/// Reads a number; leaves `out` when the key is missing or null.
Status ReadNumber(const Json& config, const char* key, double& out);

/// Reads a switch; leaves `out` when the key is missing or null.
Status ReadSwitch(const Json& config, const char* key, bool& out);

/// A switch of config.json that must have a certain value, the default when absent.
struct RequiredSwitch {
  const char* key;
  bool value;
  const char* meaning;
};
Status CheckSwitch(const Json& config, const RequiredSwitch& item);

/// Fills in what `model` leaves open of dropout and the loss of load balancing, with what
/// transformers assumes where the file says nothing. kInvalid when the file tells apart what is one
/// number here.
Status TakeObjective(const Json& config, ModelSpec& model);

// What a family's config.json says, without the checks that all families share; see huggingface.h.

Result<ModelSpec> Gpt2FromConfig(const Json& config, const ModelSpec& base);
Json Gpt2ToConfig(const ModelSpec& model);

/// Reads the head of `architectures`, with the names of id2label.
Result<ImportedHead> HeadOfConfig(const Json& config);

/// `classes` as in ExportOptions.
Result<ModelSpec> BertFromConfig(const Json& config, const ModelSpec& base);
Json BertToConfig(const ModelSpec& model, const std::vector<std::string>& classes);

Result<ModelSpec> VitFromConfig(const Json& config, const ModelSpec& base);
Json VitToConfig(const ModelSpec& model, const std::vector<std::string>& classes);

/// model_type llama, mistral or qwen2: which of them is written follows from what they differ in.
Result<ModelSpec> LlamaFromConfig(const Json& config, const ModelSpec& base);
Result<Json> LlamaToConfig(const ModelSpec& model);

}  // namespace weft
