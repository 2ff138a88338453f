#include "common/model/rank_traffic.h"

namespace weft {
namespace {

int64_t ContextBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t element = ElementBytes(inputs.precision->activations);
  const int64_t replays = inputs.remat.empty()
                              ? inputs.recomputed_blocks + inputs.attention_blocks
                              : ReplayedBlocks(inputs.remat) + ReplayedAttentions(inputs.remat);
  const int64_t backward = model.layers - inputs.shape.first_trained_layer;
  return inputs.accumulation_steps *
         ((model.layers + replays) * ForwardTraffic(model, inputs.context, tokens, element).sent +
          backward * BackwardTraffic(model, inputs.context, tokens, element).sent);
}

/// To experts and back, forward and backward, and forward once more where it is recomputed.
int64_t ExchangedBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t replays =
      inputs.remat.empty() ? inputs.recomputed_blocks : ReplayedBlocks(inputs.remat);
  return inputs.accumulation_steps * (4 * model.layers + 2 * replays) * inputs.micro_batch *
         inputs.sequence_length * model.experts_per_token * model.width *
         ElementBytes(inputs.precision->activations);
}

}  // namespace

RankTraffic TrafficOfStep(const MemoryInputs& inputs) {
  constexpr int64_t kF32 = 4;
  RankTraffic traffic;
  if (inputs.ranks == 1) return traffic;
  if (inputs.context.ranks > 1) traffic.context_sent = ContextBytes(inputs);
  const int64_t passes = inputs.accumulation_steps;
  const ModelShape& shape = inputs.shape;
  const int64_t gradients = kF32 * shape.stored_trained;
  const int64_t sharers = inputs.Sharers();
  if (sharers > 1 && sharers < inputs.ranks) {
    traffic.between_groups = inputs.zero_stage > 2 ? inputs.sharded.gradients : gradients / sharers;
  }
  switch (inputs.zero_stage) {
    case 0:
      traffic.all_reduced = gradients;
      if (shape.expert_ranks > 1) {
        traffic.experts_reduced = kF32 * shape.stored_trained_experts;
        traffic.all_reduced -= traffic.experts_reduced;
        traffic.exchanged = ExchangedBytes(inputs);
      }
      break;
    case 3:
      traffic.reduce_scattered = passes * inputs.sharded.reduced_payload;
      traffic.gathered =
          passes * (inputs.sharded.forward_payload + inputs.sharded.backward_payload);
      break;
    default:
      traffic.reduce_scattered = (inputs.zero_stage > 1 ? passes : 1) * gradients;
      // Values come back as they are stored.
      traffic.gathered = gradients - (kF32 - ElementBytes(inputs.precision->matrices)) *
                                         shape.stored_trained_matrices;
  }
  return traffic;
}

}  // namespace weft
