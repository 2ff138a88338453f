#include "worker/engine/nn/block_stack.h"

#include <utility>

#include "common/check.h"
#include "worker/engine/nn/activation_compressor.h"

namespace weft::engine {
namespace {

// Runs what keeps tensors of a layer of the model on `tape`: in this many bits, or 0.
template <class Run>
auto WithCompressedActivations(Tape& tape, ActivationCompressor::Options options,
                               const TokenBatch& batch, Run&& run) {
  if (options.bits == 0 || !tape.recording()) return run();
  SavedTensorPolicy* const below = options.below = tape.saved_tensor_policy();
  ActivationCompressor compressor(options, batch);
  tape.SetSavedTensorPolicy(&compressor);
  auto result = run();
  tape.SetSavedTensorPolicy(below);
  return result;
}

}  // namespace

BlockStack::BlockStack(ParameterSet* parameters, const BlockStackOptions& options,
                       const ProductOptions& products)
    : parameters_(parameters),
      first_unit_(parameters->units()),
      first_(options.first),
      layers_(options.layers),
      layers_of_pass_(options.layers_of_pass),
      new_remat_(options.remat),
      activation_bits_(options.activation_bits),
      tensor_(products.tensor),
      context_(options.context),
      parameters_stay_(options.parameters_stay),
      operations_(options.operations) {
  WEFT_CHECK(layers_ == 0 || options.layers % options.distinct == 0, "layers in equal groups");
  for (int64_t i = 0; i < options.distinct; ++i) {
    parameters->StartUnit(options.first + i);
    const int64_t all = options.network_blocks > 0 ? options.network_blocks : options.distinct;
    TransformerBlockOptions block = options.block(options.first + i);
    block.index = options.first + i;
    block.grafter = options.grafter;
    blocks_.emplace_back(parameters, block, products.In({block.index, all}));
  }
  parameters->StartUnit();
}

Status BlockStack::Pack(Context& context, Repack what) {
  for (TransformerBlock& block : blocks_) {
    WEFT_RETURN_IF_ERROR(block.Pack(context, what));
    context.MarkProgress();
  }
  return OkStatus();
}

const RematPlan& BlockStack::RematOf(int64_t layers) const {
  const auto [found, added] = remat_.try_emplace(layers);
  if (added) {
    found->second = new_remat_(layers);
    WEFT_CHECK(!found->second.empty() && found->second.back().end() == layers,
               "each layer has a policy");
  }
  return found->second;
}

Result<Residual> BlockStack::Forward(Context& context, Tape& tape, Value x, const TokenBatch& batch,
                                     std::vector<KeyValueCache>* caches) const {
  Residual stream{std::move(x), {}};
  if (layers_ == 0) return stream;
  const int64_t layers =
      layers_of_pass_ != nullptr ? layers_of_pass_(context.step, tape.differentiable()) : layers_;
  const RematPlan& remat = RematOf(layers);
  const Pass pass{batch, remat, activation_bits_, caches};
  std::shared_ptr<ActivationOffload> offload;
  if (Transfers(remat) && tape.recording()) {
    offload = std::make_shared<ActivationOffload>(context.host, remat);
  }
  for (size_t i = 0; i < remat.size(); ++i) {
    const RematStep& step = remat[i];
    const int64_t last = step.end() - 1, block = BlockOf(last, layers);
    for (int64_t layer = step.first; layer <= last; ++layer) {
      const int64_t entered = BlockOf(layer, layers);
      if (layer != FirstLayerOf(entered, layers)) continue;
      WEFT_RETURN_IF_ERROR(EnterUnit(context, tape, *parameters_, first_unit_ + entered));
    }
    WEFT_ASSIGN_OR_RETURN(
        stream, offload == nullptr
                    ? RunStep(context, tape, step, std::move(stream), pass)
                    : RunWithTransfers(context, tape, i, std::move(stream), pass, offload));
    if (last + 1 == FirstLayerOf(block + 1, layers)) {
      const bool differentiated = stream.stream.needs_gradient() || stream.delta.needs_gradient();
      WEFT_RETURN_IF_ERROR(LeaveUnit(context, tape, *parameters_, first_unit_ + block,
                                     differentiated, parameters_stay_ && last + 1 == layers));
    }
  }
  return stream;
}

Result<Residual> BlockStack::RunWithTransfers(
    Context& context, Tape& tape, size_t index, Residual x, const Pass& pass,
    const std::shared_ptr<ActivationOffload>& offload) const {
  const RematPlan& remat = pass.remat;
  const RematStep& step = remat[index];
  if (step.offloaded()) tape.SetSavedTensorPolicy(offload.get());
  Result<Residual> y = RunStep(context, tape, step, std::move(x), pass);
  tape.SetSavedTensorPolicy(nullptr);
  WEFT_RETURN_IF_ERROR(y.status());
  WEFT_RETURN_IF_ERROR(offload->EndForward(context, index));
  for (const RematStep& other : remat) {
    if (other.sent == static_cast<int64_t>(index)) Note("sent", other.first);
  }
  // What is recorded last runs first.
  tape.Record("fetch activations", [this, &remat, offload, index](Context& ctx, Tape&) {
    for (auto other = remat.rbegin(); other != remat.rend(); ++other) {
      if (other->fetched == static_cast<int64_t>(index)) Note("fetch", other->first);
    }
    return offload->StartBackward(ctx, index);
  });
  return y;
}

void BlockStack::Note(const std::string& operation, int64_t layer) const {
  if (operations_ != nullptr) {
    operations_->push_back(operation + " " + std::to_string(layer));
  }
}

Result<Residual> BlockStack::RunStep(Context& context, Tape& tape, const RematStep& step,
                                     Residual x, const Pass& pass) const {
  if (step.kind == RematStep::Kind::kSegment && tape.recording()) {
    return RunSegment(context, tape, step, x, pass);
  }
  if (step.count == 1) return RunLayer(context, tape, step, x, pass);
  for (int64_t layer = step.first; layer < step.end(); ++layer) {
    WEFT_ASSIGN_OR_RETURN(x,
                          RunLayer(context, tape, {RematStep::Kind::kKeep, layer, 1, {}}, x, pass));
  }
  return x;
}

Result<Residual> BlockStack::RunLayer(Context& context, Tape& tape, const RematStep& step,
                                      const Residual& x, const Pass& pass) const {
  const int64_t layer = step.first, layers = pass.remat.back().end();
  const int64_t block_index = BlockOf(layer, layers);
  context.MarkProgress();  // what comes before it is done
  const bool attention = step.kind == RematStep::Kind::kAttention;
  if (operations_ != nullptr && tape.recording()) {
    Note(std::string(attention ? "F_attention" : "F_all") + (step.offloaded() ? "_host" : ""),
         layer);
    tape.Record("block", [this, layer](Context&, Tape&) {
      Note("B", layer);
      return OkStatus();
    });
  }
  KeyValueCache* cache =
      pass.caches == nullptr ? nullptr : &(*pass.caches)[static_cast<size_t>(first_ + layer)];
  const TransformerBlock& block = blocks_[static_cast<size_t>(block_index)];
  const BlockUse use{pass.batch, first_ + layer, layer - FirstLayerOf(block_index, layers), cache,
                     attention};
  return WithCompressedActivations(tape, {pass.bits, first_ + layer, tensor_, context_}, pass.batch,
                                   [&] { return block.Forward(context, tape, x, use); });
}

// The input of the first layer is kept as one tensor: the sum, not its two terms.
Result<Residual> BlockStack::RunSegment(Context& context, Tape& tape, const RematStep& step,
                                        const Residual& x, const Pass& pass) const {
  const int64_t layers = pass.remat.back().end();
  const ParameterPrefetcher* prefetcher = parameters_->prefetcher();
  WEFT_CHECK(prefetcher == nullptr || !prefetcher->drops() ||
                 BlockOf(step.first, layers) == BlockOf(step.end() - 1, layers),
             "what is recomputed at once reads the parameters of one block");
  WEFT_ASSIGN_OR_RETURN(Value input, Sum(context, tape, x));
  for (int64_t layer = step.first; layer < step.end(); ++layer) {
    Note(layer > step.first ? "F_none" : step.offloaded() ? "F_ck_host" : "F_ck", layer);
  }
  // What one layer keeps soon goes; quantised values would only exist together with their source.
  const int64_t bits = step.count > 1 ? pass.bits : 0;
  const Segment segment = [this, &step, &remat = pass.remat, batch = pass.batch, bits](
                              Context& ctx, Tape& t,
                              const std::vector<Value>& inputs) -> Result<std::vector<Value>> {
    Residual out{inputs[0], {}};
    for (const RematStep& part : step.replay) {
      WEFT_ASSIGN_OR_RETURN(out, RunStep(ctx, t, part, std::move(out), {batch, remat, bits}));
    }
    std::vector<Value> outputs{std::move(out.stream)};
    if (out.delta.tensor) outputs.push_back(std::move(out.delta));
    return outputs;
  };
  WEFT_ASSIGN_OR_RETURN(std::vector<Value> out,
                        WithCompressedActivations(
                            tape, {pass.bits, first_ + step.first, tensor_, context_}, pass.batch,
                            [&] { return Recompute(context, tape, segment, {input}); }));
  return Residual{std::move(out[0]), out.size() > 1 ? std::move(out[1]) : Value()};
}

}  // namespace weft::engine
