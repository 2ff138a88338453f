#pragma once

#include <optional>
#include <string>

#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/mixture_of_experts.h"
#include "worker/engine/nn/mlp.h"
#include "worker/engine/nn/residual.h"
#include "worker/engine/nn/self_attention.h"

namespace weft::engine {

/// The composition of a model's block.
struct TransformerBlockOptions {
  NormPosition norm_position = NormPosition::kPre;
  BranchScaling branch_scaling = BranchScaling::kNone;
  NormOptions attention_norm;
  SelfAttentionOptions attention;
  NormOptions mlp_norm;
  MlpOptions mlp;
  std::optional<MixtureOfExpertsOptions> experts = {};  ///< In the place of mlp.
  double dropout = 0;                                   ///< Of what attention and the MLP compute.
  std::string attention_dropout;                        ///< Name of the site.
  std::string mlp_dropout;
  int64_t index = 0;     ///< Of the network's blocks.
  Grafter grafter = {};  ///< Has more grafts for the sub-layers, or none.
};

/// How a block is used in a forward pass.
struct BlockUse {
  const TokenBatch& batch;
  int64_t layer = 0;               ///< Of the model.
  int64_t use = 0;                 ///< Of the layers that share this block, from 0.
  KeyValueCache* cache = nullptr;  ///< Of the layer, in generation.
  bool recompute_attention = false;
};

/// Self-attention, then an MLP or a mixture of them, each within a residual branch.
class TransformerBlock {
 public:
  TransformerBlock(ParameterSet* parameters, const TransformerBlockOptions& options,
                   const ProductOptions& products);

  Status Pack(Context& context, Repack what);
  Result<Residual> Forward(Context& context, Tape& tape, const Residual& x,
                           const BlockUse& use) const;

 private:
  Result<Residual> Compute(Context& context, Tape& tape, const Residual& x,
                           const BlockUse& use) const;

  const TensorParallel* tensor_;  ///< Tensor-parallel ranks, or none.
  ResidualBranch attention_branch_;
  SelfAttention attention_;
  ResidualBranch mlp_branch_;
  std::optional<Mlp> mlp_;
  std::optional<MixtureOfExperts> experts_;
};

}  // namespace weft::engine
