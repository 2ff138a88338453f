#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/technique_cost.h"
#include "worker/engine/models/language_model.h"
#include "worker/engine/nn/block_stack.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/nn/embedding.h"
#include "worker/engine/nn/virtual_rows.h"

namespace weft::engine {

/// What distinguishes one family of causal language models from another.
struct DecoderOptions {
  std::string token_embedding;  ///< Name of the table.
  /// The same; empty where positions enter elsewhere.
  std::string position_embedding = "";
  std::string embedding_dropout;  ///< Name of the site.
  std::string classifier;         ///< Name of the matrix where it is not the token embedding.
  NormOptions final_norm;         ///< Before the classifier; with pre-norm blocks only.
  std::shared_ptr<RotaryTable> rotary = nullptr;  ///< That of the blocks, or none.
  std::function<TransformerBlockOptions(int64_t index)> block;
};

/// A causal language model: embedding, blocks, norm, classifier. Parameters have the names of
/// Hugging Face's files; weights of linear layers are [out, in]. With a factorised embedding (Lan
/// et al. 2020, arXiv 1909.11942) the tables are narrower than the network; "embedding_in" and,
/// with a tied classifier, "embedding_out" project between them.
class Decoder : public LanguageModel {
 public:
  /// Registers the parameters; the caller allocates them.
  Decoder(const ModelSpec& spec, const ModelOptions& options, const DecoderOptions& family);

  const ModelSpec& spec() const override { return spec_; }
  const PrecisionRecipe& precision() const override { return precision_; }
  ParameterSet& parameters() override { return parameters_; }
  Status Pack(Context& context, Repack what) override;
  Status Loss(Context& context, Tape& tape, const TokenBatch& batch,
              kernels::StepValue<float> gradient_scale, BatchLoss* total) const override;
  Result<Value> Stage(Context& context, Tape& tape, int64_t stage, Value x, const TokenBatch& batch,
                      kernels::StepValue<float> gradient_scale, BatchLoss* total) const override;
  Result<Tensor> Logits(Context& context, const TokenBatch& batch) const override {
    return Logits(context, batch, nullptr);
  }
  Result<Tensor> Logits(Context& context, const TokenBatch& batch,
                        std::vector<KeyValueCache>* caches) const override;
  Result<Tensor> HiddenStates(Context& context, const TokenBatch& batch) const override;
  Status AddLogits(Context& context, const Tensor& hidden, const Tensor& logits) const override;

 private:
  /// What the head is to predict. Runs the network whose logits it adds, where there is one.
  Result<HeadTargets> TargetsOf(Context& context, const TokenBatch& batch) const;
  Result<BlockRows> RowsOf(Context& context, const TokenBatch& batch,
                           const std::vector<KeyValueCache>* caches) const;
  /// What the first block reads, at the rows of `extended` if there is one.
  Result<Value> Embed(Context& context, Tape& tape, const TokenBatch& batch,
                      const std::optional<TokenBatch::Extended>& extended) const;
  /// What the classifier reads, of what the last block left at these rows.
  Result<Value> ClassifierInput(Context& context, Tape& tape, Residual stream,
                                const Tensor& token_rows) const;
  Result<Value> Hidden(Context& context, Tape& tape, const TokenBatch& batch,
                       std::vector<KeyValueCache>* caches) const;

  ModelSpec spec_;
  PipelinePart part_;
  const PrecisionRecipe& precision_;
  const TensorParallel* tensor_;  ///< Tensor-parallel ranks, or none.
  ParameterSet parameters_;
  int64_t tokens_;  ///< -1 where a pipeline has it elsewhere, as are those below.
  int64_t positions_;
  Embedding embedding_;
  VirtualTokenCounts virtual_tokens_;
  std::optional<Embedding> virtual_positions_;  ///< Of virtual tokens, where positions are learned.
  std::optional<Linear> embedding_in_;
  Grafts embedding_grafts_;
  std::shared_ptr<RotaryTable> rotary_;
  std::vector<BlockStack> stages_;  ///< One, but in a pipeline.
  std::optional<Norm> final_norm_;
  std::optional<Linear> embedding_out_;
  bool has_logits_part_;  ///< The classifier is a part: ModelOptions::logits_part.
  std::optional<PackedParameter> classifier_;  ///< On the last rank of a pipeline alone, as
  std::optional<ClassifierHead> head_;         ///< this.
  float output_scale_;                         ///< Of what the classifier reads.
};

}  // namespace weft::engine
