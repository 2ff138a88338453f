#pragma once

#include <string>
#include <vector>

#include "common/env.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_base.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// Adapters in folders of Hugging Face's peft library: adapter_config.json and
// adapter_model.safetensors.

inline constexpr char kAdapterWeightsName[] = "adapter_model.safetensors";

/// The file of the weights in the folder of an adapter: this one, or for a method that peft lacks
/// that of Weft's own form.
std::string AdapterWeightsName(const PeftSpec& spec);

/// Every tensor of the files of model.peft's adapter, in the order of the forward pass; after them
/// what is trained whole (model.peft.modules_to_save).
std::vector<HuggingFaceTensor> AdapterTensors(const ModelSpec& model);

/// The model.peft of the adapter in `folder`: method, rank, scale and layers. Layers are those that
/// the tensors name. `model` is the network, its sizes known. Dropout and what else concerns
/// training alone is not read. kInvalid when the configuration has more than 4 MiB, when the
/// adapter is of another method or has a setting that is not computed (the message says which),
/// when a tensor is of no layer of the network or of one that gets no adapters (all outside blocks
/// except the token embedding, and routers), or when the adapter is one of another network than
/// model.import_path (CheckBaseName).
Result<PeftSpec> ReadAdapterConfig(Env& env, const std::string& folder, const ModelSpec& model);

/// Fills the adapter of `model`, whose model.peft is that of the folder, from its tensors (F32,
/// BF16 or F16). kInvalid names every missing and unknown tensor, or the tensor whose shape or type
/// differs or that holds NaN or infinite numbers.
Status ImportAdapter(Env& env, const std::string& folder, const ModelSpec& model,
                     const WeightBuffer& buffer);

/// Writes a folder that peft loads onto the network of `model`, its tensors as F32 or in the types
/// of origin.read_from. Each file is replaced atomically.
/// kInvalid for a model without model.peft, or whose layers share blocks.
Status ExportAdapter(Env& env, const std::string& folder, const ModelSpec& model,
                     const AdapterOrigin& origin, const WeightValues& values);

}  // namespace weft
