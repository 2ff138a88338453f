#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// Whether model.peft trains anything.
inline bool AsksForPeft(const ModelSpec& model) {
  return model.peft.method != "none";
}

/// Whether the method puts adapters besides weights of blocks.
bool AdaptsWeights(const PeftSpec& spec);

/// model.peft.target_modules, with the default of the family resolved; empty with a target_regex.
std::vector<std::string> TargetModules(const ModelSpec& model);

/// Whether model.peft has an adapter besides this weight of a block.
bool IsTarget(const ModelSpec& model, const ParameterInfo& weight);

/// Whether ia3 scales the inputs of the layer of this target, and not its results.
bool ScalesInputs(const ModelSpec& model, const ParameterInfo& weight);

/// Whether model.peft.modules_to_save names this parameter of the network.
bool IsSavedWhole(const ModelSpec& model, const std::string& parameter);

/// The tensors of an adapter besides a weight "<layer>.weight" [out, in], a target:
///   lora  "<layer>.lora_A.weight" [rank, in], "<layer>.lora_B.weight" [out, rank] and with
///         use_dora "<layer>.lora_magnitude_vector" [out]
///   ia3   "<layer>.ia3_l" [out], or [in] where it scales inputs
///   miss  "<layer>.miss_block" [out, rank]
///   loha  "<layer>.hada_w1_a" [out, rank], "<layer>.hada_w1_b" [rank, in] and the same of w2
///   lokr  "<layer>.lokr_w1" and "<layer>.lokr_w2" (KroneckerSizes), or instead of a large one its
///         factors "<layer>.lokr_w1_a" [its rows, rank] and "<layer>.lokr_w1_b" [rank, its columns]
///   oft   "<layer>.oft_R.weight" [blocks, numbers above the diagonal of a block]
///   vera  "<layer>.vera_lambda_b" [out], "<layer>.vera_lambda_d" [rank], and once in the network
///         "vera_A" and "vera_B"
/// Hugging Face's peft library names them so, after "base_model.model.".
std::vector<ParameterInfo> AdapterOf(const ModelSpec& model, const ParameterInfo& weight);

/// Columns of the last factor of lora, loha, lokr, vera or miss besides a weight of this name.
int64_t RankOf(const PeftSpec& spec, const std::string& weight);

/// What the product of the factors of lora, loha or lokr is multiplied by, besides a weight of this
/// name.
double LoraScale(const PeftSpec& spec, const std::string& weight);

/// kInvalid where something that model.peft names is not in `model`, whose sizes are resolved.
Status CheckPeftNames(const ModelSpec& model);

}  // namespace weft
