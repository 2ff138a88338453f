#pragma once

#include <memory>
#include <vector>

#include "worker/engine/models/model.h"
#include "worker/engine/nn/added_logits.h"
#include "worker/engine/nn/self_attention.h"

namespace weft::engine {

/// A model that predicts the next token, for generation, and for others that add its logits to
/// theirs. Logits() are its own.
class LanguageModel : public Model, public LogitsSource {
 public:
  using Model::Logits;
  using Model::Model;

  /// Computes Logits as above; with `caches` (one a layer, of one sequence) the batch follows the
  /// tokens in them.
  virtual Result<Tensor> Logits(Context& context, const TokenBatch& batch,
                                std::vector<KeyValueCache>* caches) const = 0;
};

/// NewModel of a causal language model; kInvalid for another one.
Result<std::unique_ptr<LanguageModel>> NewLanguageModel(Context& context, const ModelSpec& spec,
                                                        const ModelOptions& options);

}  // namespace weft::engine
