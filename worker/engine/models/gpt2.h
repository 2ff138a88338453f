#pragma once

#include <vector>

#include "worker/engine/models/language_model.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/nn/dropout.h"
#include "worker/engine/nn/embedding.h"
#include "worker/engine/nn/layer_norm.h"
#include "worker/engine/nn/mlp.h"
#include "worker/engine/nn/self_attention.h"

namespace weft::engine {

/// A pre-norm transformer block: attention, then the MLP, each added to the residual stream.
class Gpt2Block {
 public:
  Gpt2Block(ParameterSet* parameters, const std::string& name, const ModelSpec& spec,
            DType compute);

  Status Pack(Context& context);
  Result<Residual> Forward(Context& context, Tape& tape, const Residual& x, const TokenBatch& batch,
                           KeyValueCache* cache) const;

 private:
  LayerNorm ln_1_;
  SelfAttention attention_;
  Dropout attention_dropout_;
  LayerNorm ln_2_;
  Mlp mlp_;
  Dropout mlp_dropout_;
};

/// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners") with its
/// embedding tied to the classifier. Parameters have the names of Hugging Face's GPT2LMHeadModel;
/// weights of linear layers are [out, in].
class Gpt2 : public LanguageModel {
 public:
  /// Registers the parameters; the caller allocates them.
  Gpt2(const ModelSpec& spec, const ModelOptions& options);

  const ModelSpec& spec() const override { return spec_; }
  DType compute() const override { return classifier_.compute(); }
  ParameterSet& parameters() override { return parameters_; }
  Status Pack(Context& context) override;
  Result<double> LossSum(Context& context, Tape& tape, const TokenBatch& batch,
                         float gradient_scale) const override;
  Result<Tensor> Logits(Context& context, const TokenBatch& batch,
                        std::vector<KeyValueCache>* caches) const override;

 private:
  Result<Value> Hidden(Context& context, Tape& tape, const TokenBatch& batch,
                       std::vector<KeyValueCache>* caches) const;
  Result<Residual> RecomputedBlock(Context& context, Tape& tape, const Gpt2Block& block,
                                   const Residual& x, const TokenBatch& batch) const;

  ModelSpec spec_;
  std::vector<std::string> block_memory_policy_;
  ParameterSet parameters_;
  int64_t wte_;
  int64_t wpe_;
  PackedParameter classifier_;
  Embedding embedding_;
  Dropout embedding_dropout_;
  std::vector<Gpt2Block> blocks_;
  LayerNorm ln_f_;
  ClassifierHead head_;
};

}  // namespace weft::engine
