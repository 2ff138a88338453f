#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Whether model.peft adapts anything.
inline bool AsksForPeft(const ModelSpec& model) {
  return model.peft.method != "none";
}

/// model.peft.target_modules, with the default of the family resolved.
std::vector<std::string> TargetModules(const ModelSpec& model);

/// Whether model.peft has an adapter besides this weight of a block.
bool IsTarget(const ModelSpec& model, const ParameterInfo& weight);

/// The factors of LoRA besides a weight "<layer>.weight" [out, in]: "<layer>.lora_A.weight"
/// [rank, in] and "<layer>.lora_B.weight" [out, rank]. Hugging Face's peft library names and stores
/// them so, after "base_model.model.".
std::vector<ParameterInfo> LoraFactors(const PeftSpec& spec, const ParameterInfo& weight);

/// What the product of the factors is multiplied by.
double LoraScale(const PeftSpec& spec);

}  // namespace weft
