#include "worker/engine/nn/transformer_block.h"

namespace weft::engine {

TransformerBlock::TransformerBlock(ParameterSet* parameters, const TransformerBlockOptions& options,
                                   const ProductOptions& products)
    : tensor_(products.tensor),
      attention_branch_(
          parameters, options.attention_norm, options.norm_position,
          {options.branch_scaling, options.attention.output, options.attention.width}),
      attention_(parameters, options.attention, products),
      attention_dropout_(options.attention_dropout, options.dropout),
      mlp_branch_(parameters, options.mlp_norm, options.norm_position,
                  {options.branch_scaling, options.mlp.down, options.mlp.width}),
      mlp_dropout_(options.mlp_dropout, options.dropout) {
  if (options.experts) {
    experts_.emplace(parameters, *options.experts, products);
  } else {
    mlp_.emplace(parameters, options.mlp, products);
  }
}

Status TransformerBlock::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(attention_.Pack(context, what));
  return experts_ ? experts_->Pack(context, what) : mlp_->Pack(context, what);
}

Result<Residual> TransformerBlock::Forward(Context& context, Tape& tape, const Residual& x,
                                           const BlockUse& use) const {
  const int64_t first_token =
      use.batch.first_token + (tensor_ != nullptr ? tensor_->FirstRow(use.batch.count) : 0);
  const auto attend = [&](const Value& in) -> Result<Value> {
    WEFT_ASSIGN_OR_RETURN(
        Value out, use.recompute_attention && tape.recording()
                       ? attention_.ForwardRecomputed(context, tape, in, use.batch, use.use)
                       : attention_.Forward(context, tape, in, use.batch, use.use, use.cache));
    return attention_dropout_.Forward(context, tape, std::move(out), first_token, use.use);
  };
  const auto transform = [&](const Value& in) -> Result<Value> {
    WEFT_ASSIGN_OR_RETURN(Value out, experts_ ? experts_->Forward(context, tape, in, use.batch)
                                              : mlp_->Forward(context, tape, in));
    return mlp_dropout_.Forward(context, tape, std::move(out), first_token, use.use);
  };
  WEFT_ASSIGN_OR_RETURN(Residual attended, attention_branch_.Forward(context, tape, x, attend));
  return mlp_branch_.Forward(context, tape, attended, transform);
}

}  // namespace weft::engine
