#pragma once

#include <string>

#include "common/formats/huggingface.h"
#include "worker/engine/models/language_model.h"

namespace weft::engine {

/// Loads the weights of a Hugging Face folder into `model`, which was made from its config.json.
/// Errors as ImportModel.
Status ImportWeights(Env& env, const std::string& folder, LanguageModel& model);

/// Writes `model` as a Hugging Face folder. Errors as ExportModel.
Status ExportWeights(Env& env, const std::string& folder, LanguageModel& model,
                     const ExportOptions& options);

}  // namespace weft::engine
