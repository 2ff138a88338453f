#pragma once

#include <vector>

#include "common/model/parameter_list.h"
#include "common/spec/model_spec.h"

namespace weft {

/// The tensors of an adapter besides a weight "<layer>.weight" [out, in], a target:
///   lora  "<layer>.lora_A.weight" [rank, in], "<layer>.lora_B.weight" [out, rank] and with
///         use_dora "<layer>.lora_magnitude_vector" [out]; both factors for each of several
///         adapters (model.peft.adapters), "<layer>.lora_A.<name>.weight"
///   adalora "<layer>.lora_A" [rank, in], "<layer>.lora_B" [out, rank], "<layer>.lora_E" [rank]
///   ia3   "<layer>.ia3_l" [out], or [in] where it scales inputs
///   miss  "<layer>.miss_block" [out, rank]
///   loha  "<layer>.hada_w1_a" [out, rank], "<layer>.hada_w1_b" [rank, in] and the same of w2
///   lokr  "<layer>.lokr_w1" and "<layer>.lokr_w2" (KroneckerSizes), or instead of a large one its
///         factors "<layer>.lokr_w1_a" [its rows, rank] and "<layer>.lokr_w1_b" [rank, its columns]
///   oft   "<layer>.oft_R.weight" [blocks, numbers above the diagonal of a block]
///   vera  "<layer>.vera_lambda_b" [out], "<layer>.vera_lambda_d" [rank], and once in the network
///         "vera_A" and "vera_B"
/// Those last two are SharedFactors. Hugging Face's peft library names them so, after
/// "base_model.model.".
std::vector<ParameterInfo> AdapterOf(const ModelSpec& model, const ParameterInfo& weight);

}  // namespace weft
