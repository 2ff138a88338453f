#pragma once

#include <memory>
#include <string>

#include "common/env.h"
#include "common/model/precision.h"
#include "worker/engine/models/language_model.h"

namespace weft::engine {

/// The causal language model of a Hugging Face folder, ready for others to add its logits to theirs
/// (ModelOptions::logits_source): without gradients and without dropout. Each tensor-parallel rank
/// of `ranks`, unless it is null, has all of it, and adds the logits of its part of the vocabulary.
/// Errors as ReadModelConfig and ImportWeights, but kInvalid for damaged files.
Result<std::unique_ptr<LanguageModel>> LoadAddedNetwork(Env& env, Context& context,
                                                        const std::string& folder,
                                                        const PrecisionRecipe& precision,
                                                        const TensorParallel* ranks = nullptr);

}  // namespace weft::engine
