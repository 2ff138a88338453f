#include "worker/engine/nn/block_stack.h"

namespace weft::engine {
namespace {

// Blocks at the ends may keep their products out of FP8.
ProductOptions OfBlock(const ProductOptions& products, int64_t block, int64_t blocks) {
  if (products.fp8 == nullptr) return products;
  const Fp8Spec& spec = products.fp8->spec();
  const bool edge = block < spec.bf16_first_blocks || block >= blocks - spec.bf16_last_blocks;
  return edge ? ProductOptions(products.compute, nullptr, products.tensor) : products;
}

}  // namespace

BlockStack::BlockStack(ParameterSet* parameters, const BlockStackOptions& options,
                       const ProductOptions& products)
    : parameters_(parameters),
      first_unit_(parameters->units()),
      first_(options.first),
      layers_(options.layers),
      memory_policy_(options.memory_policy) {
  WEFT_CHECK(options.layers % options.distinct == 0, "layers in equal groups");
  for (int64_t i = 0; i < options.distinct; ++i) {
    parameters->StartUnit();
    blocks_.emplace_back(parameters, options.block(options.first + i),
                         OfBlock(products, i, options.distinct));
  }
  parameters->StartUnit();
}

Status BlockStack::Pack(Context& context, Repack what) {
  for (TransformerBlock& block : blocks_) WEFT_RETURN_IF_ERROR(block.Pack(context, what));
  return OkStatus();
}

Result<Residual> BlockStack::Forward(Context& context, Tape& tape, Value x, const TokenBatch& batch,
                                     std::vector<KeyValueCache>* caches) const {
  Residual stream{std::move(x), {}};
  const auto uses = layers_ / static_cast<int64_t>(blocks_.size());
  for (int64_t layer = 0; layer < layers_; ++layer) {
    const TransformerBlock& block = blocks_[layer / uses];
    const int64_t unit = first_unit_ + layer / uses;
    if (layer % uses == 0) {
      WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, *parameters_, unit));
    }
    const auto index = static_cast<size_t>(first_ + layer);
    const bool recompute = index < memory_policy_.size() && memory_policy_[index] != "keep";
    if (recompute && tape.recording()) {
      WEFT_ASSIGN_OR_RETURN(stream, Recomputed(context, tape, block, stream, batch, layer % uses));
    } else {
      KeyValueCache* cache = caches == nullptr ? nullptr : &(*caches)[index];
      WEFT_ASSIGN_OR_RETURN(stream,
                            block.Forward(context, tape, stream, {batch, layer % uses, cache}));
    }
    if (layer % uses == uses - 1) {
      const bool differentiated = stream.stream.needs_gradient() || stream.delta.needs_gradient();
      WEFT_RETURN_IF_ERROR(
          LeaveUnit(context, tape, *parameters_, unit, differentiated, layer + 1 == layers_));
    }
  }
  return stream;
}

// The block's input is kept as one tensor: the sum, not its two terms.
Result<Residual> BlockStack::Recomputed(Context& context, Tape& tape, const TransformerBlock& block,
                                        const Residual& x, const TokenBatch& batch,
                                        int64_t use) const {
  WEFT_ASSIGN_OR_RETURN(Value input, Sum(context, tape, x));
  const Segment segment = [&block, batch, use](
                              Context& ctx, Tape& t,
                              const std::vector<Value>& inputs) -> Result<std::vector<Value>> {
    WEFT_ASSIGN_OR_RETURN(Residual out, block.Forward(ctx, t, {inputs[0], {}}, {batch, use}));
    std::vector<Value> outputs{std::move(out.stream)};
    if (out.delta.tensor) outputs.push_back(std::move(out.delta));
    return outputs;
  };
  WEFT_ASSIGN_OR_RETURN(std::vector<Value> out, Recompute(context, tape, segment, {input}));
  return Residual{std::move(out[0]), out.size() > 1 ? std::move(out[1]) : Value()};
}

}  // namespace weft::engine
