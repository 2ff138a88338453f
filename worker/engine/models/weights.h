#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/formats/peft_base.h"
#include "worker/engine/models/model.h"

namespace weft::engine {

/// Loads the weights of a Hugging Face folder into `model`, which was made from its config.json; of
/// sharded weights this rank's shard. Arguments and errors as ImportModel.
Status ImportWeights(Env& env, const std::string& folder, Model& model,
                     HeadWeights head = HeadWeights::kFromFile);

/// Loads the adapter of a folder of Hugging Face's peft library into `model`, whose spec has what
/// ReadAdapterConfig says; of sharded tensors this rank's shard. Errors as ImportAdapter.
Status ImportAdapterWeights(Env& env, const std::string& folder, Model& model);

/// Writes the adapter of `model`. Errors as ExportAdapter; kInvalid when its weights are sharded.
Status ExportAdapterWeights(Env& env, const std::string& folder, Model& model,
                            const AdapterOrigin& origin = {});

/// Writes `model` as a Hugging Face folder. Errors as ExportModel; kInvalid when ranks
/// share its weights.
Status ExportWeights(Env& env, const std::string& folder, Model& model,
                     const ExportOptions& options);

}  // namespace weft::engine
