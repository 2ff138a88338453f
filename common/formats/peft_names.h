#pragma once

#include <string_view>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/formats/safetensors.h"
#include "common/spec/model_spec.h"

namespace weft {

// Names of modules in folders of peft: those of the version of transformers that wrote them
// (model.peft.module_names).

/// What the names of tensors of a whole network begin with in files of adapters.
inline constexpr std::string_view kNetworkPrefix = "base_model.model.";

/// `model` with the names that the modules have in a file of an adapter of it.
ModelSpec NamedAsIn(const SafetensorsFile& file, const ModelSpec& model);

/// HuggingFaceTensors by the names that they have in the network: those of its files are older
/// where transformers 5 has renamed its modules.
std::vector<HuggingFaceTensor> NetworkTensors(const ModelSpec& model);

}  // namespace weft
