#include "worker/engine/nn/transformer_block.h"

#include <memory>
#include <string>
#include <utility>

#include "worker/engine/autograd/scale.h"
#include "worker/engine/nn/dropout.h"

namespace weft::engine {
namespace {

GraftSite SiteOf(ParameterSet* parameters, const TransformerBlockOptions& options,
                 const ProductOptions& products, SubLayer sub_layer) {
  const bool attention = sub_layer == SubLayer::kAttention;
  const std::string& mlp = options.experts ? options.experts->name : options.mlp.down;
  return {.parameters = parameters,
          .products = &products,
          .sub_layer = sub_layer,
          .block = options.index,
          .name = attention ? options.attention.output : mlp,
          .width = attention ? options.attention.width : options.mlp.width};
}

// Dropout, then what options.grafter has.
Grafter GrafterOf(const TransformerBlockOptions& options) {
  return [&options](const GraftSite& site, Grafts& grafts) {
    const bool attention = site.sub_layer == SubLayer::kAttention;
    if (options.dropout > 0) {
      grafts.Put(GraftPlace::kSubLayerOutput,
                 std::make_unique<Dropout>(
                     attention ? options.attention_dropout : options.mlp_dropout, options.dropout));
    }
    if (options.grafter) options.grafter(site, grafts);
  };
}

}  // namespace

TransformerBlock::TransformerBlock(ParameterSet* parameters, const TransformerBlockOptions& options,
                                   const ProductOptions& products)
    : tensor_(products.tensor),
      attention_branch_(SiteOf(parameters, options, products, SubLayer::kAttention),
                        options.attention_norm, options.norm_position, options.branch_scaling,
                        GrafterOf(options)),
      attention_(parameters, options.attention, products),
      mlp_branch_(SiteOf(parameters, options, products, SubLayer::kMlp), options.mlp_norm,
                  options.norm_position, options.branch_scaling, GrafterOf(options)) {
  if (options.experts) {
    experts_.emplace(parameters, *options.experts, products);
  } else {
    mlp_.emplace(parameters, options.mlp, products);
  }
  attention_branch_.EndParameters(mlp_branch_.begin_parameter());
  mlp_branch_.EndParameters(parameters->size());
}

Status TransformerBlock::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(attention_branch_.Pack(context, what));
  WEFT_RETURN_IF_ERROR(mlp_branch_.Pack(context, what));
  WEFT_RETURN_IF_ERROR(attention_.Pack(context, what));
  return experts_ ? experts_->Pack(context, what) : mlp_->Pack(context, what);
}

Result<Residual> TransformerBlock::Forward(Context& context, Tape& tape, const Residual& x,
                                           const BlockUse& use) const {
  const float share = mlp_branch_.block_share();
  if (share == 1) return Compute(context, tape, x, use);
  WEFT_ASSIGN_OR_RETURN(Value in, Sum(context, tape, x));
  WEFT_ASSIGN_OR_RETURN(Residual computed, Compute(context, tape, {in, {}}, use));
  WEFT_ASSIGN_OR_RETURN(Value out, Sum(context, tape, computed));
  computed = {};
  WEFT_ASSIGN_OR_RETURN(in, Scale(context, tape, std::move(in), 1 - share));
  WEFT_ASSIGN_OR_RETURN(out, Scale(context, tape, std::move(out), share));
  return Residual{std::move(in), std::move(out)};
}

Result<Residual> TransformerBlock::Compute(Context& context, Tape& tape, const Residual& x,
                                           const BlockUse& use) const {
  const int64_t first_token =
      use.batch.first_token + (tensor_ != nullptr ? tensor_->FirstRow(use.batch.count) : 0);
  const GraftUse graft_use{.first_row = first_token,
                           .layer = use.layer,
                           .use = use.use,
                           .first_sequence = use.batch.first_sequence,
                           .sequences = use.batch.sequences};
  const VirtualTokens* const prefix = attention_branch_.virtual_tokens();
  const auto attend = [&](const Value& in, const TokenBatch& batch) {
    return use.recompute_attention && tape.recording()
               ? attention_.ForwardRecomputed(context, tape, in, batch, use.use, prefix)
               : attention_.Forward(context, tape, in, batch, use.use, use.cache, prefix);
  };
  const auto transform = [&](const Value& in, const TokenBatch& batch) {
    return experts_ ? experts_->Forward(context, tape, in, batch)
                    : mlp_->Forward(context, tape, in);
  };
  WEFT_ASSIGN_OR_RETURN(Residual attended,
                        attention_branch_.Forward(context, tape, x, use.batch, graft_use, attend));
  return mlp_branch_.Forward(context, tape, attended, use.batch, graft_use, transform);
}

}  // namespace weft::engine
