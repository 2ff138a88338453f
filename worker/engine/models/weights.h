#pragma once

#include <string>

#include "common/formats/huggingface.h"
#include "worker/engine/models/model.h"

namespace weft::engine {

/// Loads the weights of a Hugging Face folder into `model`, which was made from its config.json; of
/// weights that ranks share its part.
/// Arguments and errors as ImportModel.
Status ImportWeights(Env& env, const std::string& folder, Model& model,
                     HeadWeights head = HeadWeights::kFromFile);

/// Writes `model` as a Hugging Face folder. Errors as ExportModel; kInvalid when ranks
/// share its weights.
Status ExportWeights(Env& env, const std::string& folder, Model& model,
                     const ExportOptions& options);

}  // namespace weft::engine
