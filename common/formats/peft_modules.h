#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// modules_to_save of peft. There a name means every module whose name ends with its characters
// ("norm" also for "input_layernorm"), in model.peft for those whose last parts it is.

/// Adds those of a configuration, as model.peft names them, each once. peft adds the heads of
/// classifications of all families of its own accord; those that the model does not have are left
/// out. kInvalid where it is no list of names, or one of them is empty.
Status ReadSavedModules(const Json& config, const ModelSpec& model,
                        std::vector<std::string>& modules);

/// Patterns of model.peft.modules_to_save for the biases of these layers and of no others, by the
/// last parts of names where these mean no more. peft's `bias` has a word for them: lora_only, ...
std::vector<std::string> BiasPatterns(const ModelSpec& model, const std::set<std::string>& layers);

/// Adds a name of model.peft.modules_to_save to a list of peft.
void AddSavedModule(const ModelSpec& model, const std::string& module, Json& list);

}  // namespace weft
