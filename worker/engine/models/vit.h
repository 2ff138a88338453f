#pragma once

#include <vector>

#include "worker/engine/models/model.h"
#include "worker/engine/models/resized_positions.h"
#include "worker/engine/nn/block_stack.h"
#include "worker/engine/nn/embedding.h"

namespace weft::engine {

/// The Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929): patches of an image as
/// tokens, a class token before them, learned positions, blocks with norms before their sub-layers,
/// and a classifier over the class token. Parameters have the names of Hugging Face's files; the
/// patch projection is a matrix [width, channels * patch * patch].
class Vit : public Model {
 public:
  /// Registers the parameters; the caller allocates them. `spec` has family vit.
  Vit(const ModelSpec& spec, const ModelOptions& options);

  const ModelSpec& spec() const override { return spec_; }
  const PrecisionRecipe& precision() const override { return precision_; }
  ParameterSet& parameters() override { return parameters_; }
  Status Pack(Context& context, Repack what) override;
  Status Loss(Context& context, Tape& tape, const TokenBatch& batch,
              kernels::StepValue<float> gradient_scale, BatchLoss* total) const override;
  Result<Tensor> Logits(Context& context, const TokenBatch& batch) const override;

 private:
  /// Whether it reads images of this many patches, and the positions of those that are not of the
  /// model's size; null: the table as it is.
  bool Reads(int64_t patches) const;
  const ResizedPositions* ResizedFor(int64_t patches) const;
  Result<Value> Embed(Context& context, Tape& tape, const TokenBatch& batch) const;
  /// [sequences, width]: the class tokens after the last norm.
  Result<Value> Features(Context& context, Tape& tape, const TokenBatch& batch) const;

  ModelSpec spec_;
  const PrecisionRecipe& precision_;
  ParameterSet parameters_;
  Embedding class_token_;
  Embedding positions_;
  std::vector<ResizedPositions>
      resized_positions_;  ///< Of the smaller images of an elastic network.
  Linear projection_;
  Grafts embedding_grafts_;
  BlockStack blocks_;
  Norm final_norm_;
  PackedParameter classifier_;
  ClassifierHead head_;
};

}  // namespace weft::engine
