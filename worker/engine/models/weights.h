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

/// Loads only the parameters `names` from a Hugging Face folder: the frozen network that a
/// checkpoint of `model` leaves out (BaseTensors). Of sharded ones this rank's shard, as
/// ImportWeights loads it; what another rank has is passed over. Calls no hooks of the parameters:
/// what is trained comes from the checkpoint. Errors as ReadHead and ImportModel.
Status ImportBase(Env& env, const std::string& folder, const ModelSpec& model,
                  const std::vector<std::string>& names, ParameterSet& parameters);

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
