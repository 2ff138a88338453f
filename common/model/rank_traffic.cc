#include "common/model/rank_traffic.h"

#include <algorithm>

#include "common/model/model_sizes.h"

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
         ((model.layers + replays) *
              ForwardTraffic(inputs.shape, inputs.context, tokens, element).sent +
          backward * BackwardTraffic(inputs.shape, inputs.context, tokens, element).sent);
}

/// To experts and back, forward and backward, and forward once more where it is recomputed.
int64_t ExchangedBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t replays =
      inputs.remat.empty() ? inputs.recomputed_blocks : ReplayedBlocks(inputs.remat);
  // Behind a mixture the first trained graft sends no gradient through it.
  const int64_t behind = inputs.shape.first_saved == SavedTensor::kMlpGrafts ? 1 : 0;
  const int64_t backward = model.layers - inputs.shape.first_trained_layer - behind;
  return inputs.accumulation_steps * 2 * (model.layers + backward + replays) * inputs.micro_batch *
         inputs.sequence_length * model.experts_per_token * model.width *
         ElementBytes(inputs.precision->activations);
}

}  // namespace

RankTraffic TrafficOfStep(const MemoryInputs& inputs) {
  constexpr int64_t kF32 = 4;
  const int64_t wire = inputs.bf16_reductions ? 2 : kF32;  // of a gradient
  RankTraffic traffic;
  if (inputs.ranks == 1) return traffic;
  if (inputs.context.ranks > 1) traffic.context_sent = ContextBytes(inputs);
  const int64_t passes = inputs.accumulation_steps;
  const ModelShape& shape = inputs.shape;
  const int64_t reduced_whole = inputs.zero_stage == 1 ? wire * shape.ReducedWhole() : 0;
  const int64_t auxiliary = inputs.optimizer.auxiliary.numbers;
  const int64_t gradients = wire * (shape.Differentiated() + auxiliary) - reduced_whole;
  const int64_t shard_ranks = inputs.ShardGroupSize();
  // Experts of expert-parallel ranks.
  const int64_t of_experts = shape.expert_ranks > 1 ? shape.stored_trained_experts : 0;
  if (shard_ranks > 1 && shard_ranks < inputs.ranks) {
    traffic.between_groups =
        inputs.zero_stage > 2
            ? inputs.sharded.gradients / kF32 * wire + wire * auxiliary / shard_ranks
            : (gradients + (shape.expert_ranks - 1) * wire * of_experts) / shard_ranks;
  }
  if (shape.expert_ranks > 1) traffic.exchanged = ExchangedBytes(inputs);
  switch (inputs.zero_stage) {
    case 0:
      traffic.experts_reduced = wire * of_experts;
      traffic.all_reduced = gradients - traffic.experts_reduced;
      break;
    case 3: {
      const ShardedTraffic& experts = inputs.sharded.experts;
      // The last block stays for its backward pass.
      const int64_t blocks = std::max<int64_t>(DistinctBlocks(shape.spec), 1);
      const int64_t twice = auxiliary * inputs.GatheredElementBytes() * (2 * blocks - 1) / blocks;
      traffic.reduce_scattered =
          passes * wire * (inputs.sharded.reduced_payload / kF32 + auxiliary);
      traffic.gathered =
          passes * (inputs.sharded.forward_payload + inputs.sharded.backward_payload + twice) +
          inputs.sharded.after_payload;
      traffic.experts_scattered = passes * experts.reduced_payload / kF32 * wire;
      traffic.experts_gathered =
          passes * (experts.forward_payload + experts.backward_payload) + experts.after_payload;
      break;
    }
    default: {
      const int64_t reductions = inputs.zero_stage > 1 ? passes : 1;
      traffic.all_reduced = reduced_whole;
      traffic.experts_scattered = reductions * wire * of_experts;
      traffic.reduce_scattered = reductions * gradients - traffic.experts_scattered;
      // Values come back as they are stored; experts are matrices.
      const int64_t stored = ElementBytes(inputs.precision->matrices);
      traffic.experts_gathered = stored * of_experts;
      traffic.gathered = kF32 * (shape.stored_trained - shape.derived) -
                         (kF32 - stored) * shape.stored_trained_matrices -
                         traffic.experts_gathered + inputs.optimizer.auxiliary.value_bytes;
      // Each rank has a part of these sums.
      if (inputs.zero_stage == 2) traffic.gathered += kF32 * shape.ReducedWhole();
    }
  }
  return traffic;
}

}  // namespace weft
