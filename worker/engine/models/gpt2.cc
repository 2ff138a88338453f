#include "worker/engine/models/gpt2.h"

#include <cmath>

#include "common/model/model_shape.h"
#include "worker/engine/autograd/add.h"

namespace weft::engine {
namespace {

// The layers that write into the residual stream start smaller, by the number of them, so that its
// variance does not grow with depth.
double ResidualDeviation(const ModelSpec& spec) {
  return spec.initializer_range / std::sqrt(2.0 * static_cast<double>(spec.layers));
}

std::vector<Gpt2Block> MakeBlocks(ParameterSet* parameters, const ModelSpec& spec, DType compute) {
  std::vector<Gpt2Block> blocks;
  for (int64_t i = 0; i < spec.layers; ++i) {
    blocks.emplace_back(parameters, "transformer.h." + std::to_string(i), spec, compute);
  }
  return blocks;
}

}  // namespace

Gpt2Block::Gpt2Block(ParameterSet* parameters, const std::string& name, const ModelSpec& spec,
                     DType compute)
    : ln_1_(parameters, name + ".ln_1", spec.width, spec.norm_epsilon),
      attention_(parameters, name + ".attn", spec.width, spec.heads, spec.initializer_range,
                 ResidualDeviation(spec), compute),
      attention_dropout_(name + ".attn.resid_dropout", spec.dropout),
      ln_2_(parameters, name + ".ln_2", spec.width, spec.norm_epsilon),
      mlp_(parameters, name + ".mlp", spec.width, MlpWidth(spec), spec.initializer_range,
           ResidualDeviation(spec), compute),
      mlp_dropout_(name + ".mlp.dropout", spec.dropout) {}

Status Gpt2Block::Pack(Context& context) {
  WEFT_RETURN_IF_ERROR(attention_.Pack(context));
  return mlp_.Pack(context);
}

Result<Residual> Gpt2Block::Forward(Context& context, Tape& tape, const Residual& x,
                                    const TokenBatch& batch, KeyValueCache* cache) const {
  WEFT_ASSIGN_OR_RETURN(LayerNorm::Output n1, ln_1_.Forward(context, tape, x));
  WEFT_ASSIGN_OR_RETURN(Value attended,
                        attention_.Forward(context, tape, n1.normalized, batch, cache));
  WEFT_ASSIGN_OR_RETURN(
      attended, attention_dropout_.Forward(context, tape, std::move(attended), batch.first_token));
  WEFT_ASSIGN_OR_RETURN(LayerNorm::Output n2, ln_2_.Forward(context, tape, {n1.stream, attended}));
  WEFT_ASSIGN_OR_RETURN(Value out, mlp_.Forward(context, tape, n2.normalized));
  WEFT_ASSIGN_OR_RETURN(out,
                        mlp_dropout_.Forward(context, tape, std::move(out), batch.first_token));
  return Residual{n2.stream, out};
}

Gpt2::Gpt2(const ModelSpec& spec, const ModelOptions& options)
    : spec_(spec),
      block_memory_policy_(options.block_memory_policy),
      wte_(parameters_.Register("transformer.wte.weight", {spec.vocab_size, spec.width},
                                {0, spec.initializer_range},
                                ModelShape{.vocab_size = spec.vocab_size}.PaddedVocabulary())),
      wpe_(parameters_.Register("transformer.wpe.weight", {spec.context, spec.width},
                                {0, spec.initializer_range})),
      classifier_(&parameters_, wte_, options.compute),
      embedding_(&parameters_, wte_, wpe_, options.compute),
      embedding_dropout_("transformer.drop", spec.dropout),
      blocks_(MakeBlocks(&parameters_, spec, options.compute)),
      ln_f_(&parameters_, "transformer.ln_f", spec.width, spec.norm_epsilon),
      head_(&parameters_, &classifier_, spec.vocab_size) {}

Status Gpt2::Pack(Context& context) {
  WEFT_RETURN_IF_ERROR(classifier_.Pack(context));
  for (Gpt2Block& block : blocks_) WEFT_RETURN_IF_ERROR(block.Pack(context));
  return OkStatus();
}

Result<Value> Gpt2::Hidden(Context& context, Tape& tape, const TokenBatch& batch,
                           std::vector<KeyValueCache>* caches) const {
  WEFT_ASSIGN_OR_RETURN(Value embedded, embedding_.Forward(context, tape, batch));
  WEFT_ASSIGN_OR_RETURN(
      embedded, embedding_dropout_.Forward(context, tape, std::move(embedded), batch.first_token));
  Residual x{std::move(embedded), {}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const bool recompute = i < block_memory_policy_.size() && block_memory_policy_[i] != "keep";
    if (recompute && tape.recording()) {
      WEFT_ASSIGN_OR_RETURN(x, RecomputedBlock(context, tape, blocks_[i], x, batch));
    } else {
      KeyValueCache* cache = caches == nullptr ? nullptr : &(*caches)[i];
      WEFT_ASSIGN_OR_RETURN(x, blocks_[i].Forward(context, tape, x, batch, cache));
    }
  }
  WEFT_ASSIGN_OR_RETURN(LayerNorm::Output last, ln_f_.Forward(context, tape, x));
  return std::move(last.normalized);
}

// The block's input is kept as one tensor: the sum, not its two terms.
Result<Residual> Gpt2::RecomputedBlock(Context& context, Tape& tape, const Gpt2Block& block,
                                       const Residual& x, const TokenBatch& batch) const {
  Value input = x.stream;
  if (x.delta.tensor) {
    WEFT_ASSIGN_OR_RETURN(input, Add(context, tape, x.stream, x.delta));
  }
  const Segment segment = [&block, batch](
                              Context& ctx, Tape& t,
                              const std::vector<Value>& inputs) -> Result<std::vector<Value>> {
    WEFT_ASSIGN_OR_RETURN(Residual out, block.Forward(ctx, t, {inputs[0], {}}, batch, nullptr));
    return std::vector<Value>{std::move(out.stream), std::move(out.delta)};
  };
  WEFT_ASSIGN_OR_RETURN(std::vector<Value> out, Recompute(context, tape, segment, {input}));
  return Residual{std::move(out[0]), std::move(out[1])};
}

Result<double> Gpt2::LossSum(Context& context, Tape& tape, const TokenBatch& batch,
                             float gradient_scale) const {
  WEFT_ASSIGN_OR_RETURN(Value hidden, Hidden(context, tape, batch, nullptr));
  return head_.LossSum(context, tape, hidden, batch.targets, gradient_scale);
}

Result<Tensor> Gpt2::Logits(Context& context, const TokenBatch& batch,
                            std::vector<KeyValueCache>* caches) const {
  Tape tape(nullptr);
  WEFT_ASSIGN_OR_RETURN(Value hidden, Hidden(context, tape, batch, caches));
  return head_.Logits(context, hidden.tensor);
}

}  // namespace weft::engine
