#pragma once

#include <optional>

#include "worker/engine/models/model.h"
#include "worker/engine/nn/block_stack.h"
#include "worker/engine/nn/dropout.h"
#include "worker/engine/nn/embedding.h"
#include "worker/engine/nn/virtual_rows.h"

namespace weft::engine {

/// BERT (Devlin et al. 2019, arXiv 1810.04805): tokens, positions and segments, blocks with norms
/// after the residual sums, and above them either the masked-language-model head or a classifier
/// over the pooled first token, which is a virtual one where there are such rows. Parameters have
/// the names of Hugging Face's files.
class Bert : public Model {
 public:
  /// Registers the parameters; the caller allocates them. `spec` has family bert.
  Bert(const ModelSpec& spec, const ModelOptions& options);

  const ModelSpec& spec() const override { return spec_; }
  const PrecisionRecipe& precision() const override { return precision_; }
  ParameterSet& parameters() override { return parameters_; }
  Status Pack(Context& context, Repack what) override;
  Status Loss(Context& context, Tape& tape, const TokenBatch& batch,
              kernels::StepValue<float> gradient_scale, BatchLoss* total) const override;
  Result<Tensor> Logits(Context& context, const TokenBatch& batch) const override;

 private:
  /// At the rows of the blocks.
  Result<Value> Embed(Context& context, Tape& tape, const TokenBatch& batch,
                      const BlockRows& rows) const;
  Result<Value> Encode(Context& context, Tape& tape, const TokenBatch& batch,
                       const BlockRows& rows) const;
  /// What the softmax is over: the masked positions, or one row a sequence.
  Result<Value> Features(Context& context, Tape& tape, const TokenBatch& batch) const;
  /// Predicts from `rows` of hidden, or from all where there are none.
  Result<Value> Predict(Context& context, Tape& tape, Value hidden, const Tensor& rows) const;
  Result<Value> Pool(Context& context, Tape& tape, const Value& hidden,
                     const TokenBatch& batch) const;

  ModelSpec spec_;
  const PrecisionRecipe& precision_;
  bool masked_;
  ParameterSet parameters_;
  int64_t tokens_;
  int64_t positions_;
  Embedding embedding_;
  VirtualTokenCounts virtual_tokens_;
  std::optional<Embedding> virtual_positions_;  ///< Of virtual tokens in the blocks.
  Embedding types_;
  Norm embedding_norm_;
  Grafts embedding_grafts_;
  BlockStack blocks_;
  Linear dense_;                        ///< Of the pooler or of the head's transform.
  std::optional<Norm> transform_norm_;  ///< masked_lm
  Dropout pooled_dropout_;              ///< classification
  PackedParameter classifier_;
  ClassifierHead head_;
};

}  // namespace weft::engine
