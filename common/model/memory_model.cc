#include "common/model/memory_model.h"

#include <algorithm>

#include "common/model/model_counts.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;

/// Bytes of an element of activations.
int64_t ElementOf(const MemoryInputs& inputs) {
  return ElementBytes(inputs.precision->activations);
}

bool Widens(const MemoryInputs& inputs) {
  return inputs.precision->products != DType::kF32 && !inputs.native_products;
}

/// Peak of saved tensors and of the results that are alive beside them: follows the forward pass
/// block by block, then the backward pass.
int64_t ActivationPeak(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t row = tokens * shape.width * ElementOf(inputs);  // one [tokens, width] tensor
  const int64_t inner = tokens * shape.mlp_width * ElementOf(inputs);
  const int64_t block = BlockSavedBytes(shape, tokens, ElementOf(inputs));
  const int64_t norm_statistics = 2 * kF32 * tokens;

  int64_t saved = 0;
  int64_t stream = row;  // the embedding; as soon as a block saves it, it counts there
  int64_t delta = 0;
  int64_t peak = row;
  for (int64_t i = 0; i < shape.layers; ++i) {
    const bool first = delta == 0;
    if (first) stream = 0;
    if (i < inputs.recomputed_blocks) {
      saved += row;
      // Both results of attention, the norm and its input; at the end the MLP's as well.
      const int64_t preview = std::max(6 * row, 5 * row + inner);
      peak = std::max(peak, saved + stream + delta + preview);
      stream = row;  // the sum after attention, which nobody saved
    } else {
      saved += block;
      peak = std::max(peak, saved + stream + delta + 2 * row);
      stream = 0;
    }
    delta = row;
  }
  peak = std::max(peak, saved + stream + delta + 2 * row + norm_statistics);
  saved -= block * (shape.layers - inputs.recomputed_blocks);
  if (inputs.recomputed_blocks > 0) {
    // The replay of the last recomputed block; its input is among the saved ones.
    peak = std::max(peak, saved + block - row + 2 * row);
  }
  return peak;
}

int64_t WorkspacePeak(const MemoryInputs& inputs, int64_t activations) {
  const ModelShape& shape = inputs.shape;
  const int64_t element = ElementOf(inputs);
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t row = tokens * shape.width * element;
  const int64_t inner = tokens * shape.mlp_width * element;
  const int64_t chunk = std::min(LogitsChunkRows(shape, tokens, element), tokens);
  const int64_t columns = shape.PaddedVocabulary();

  // Token, target and position of every micro-batch of the step, and where sequences start.
  const int64_t batches = inputs.accumulation_steps * kF32 * (3 * tokens + inputs.micro_batch + 1);
  const int64_t head = chunk * columns * element + tokens * kF32 + row;
  const int64_t mlp_backward = row + 2 * inner;
  const int64_t attention_backward = 5 * row;
  int64_t peak = std::max({head, mlp_backward, attention_backward});
  if (Widens(inputs)) {
    // f32 copies of both operands of the largest product.
    peak +=
        kF32 * std::max(chunk * (columns + shape.width), tokens * (shape.mlp_width + shape.width));
  }
  // An evaluation saves nothing, but all results of a block count as workspace.
  const int64_t evaluation = 8 * row + 2 * inner;
  return batches + std::max(peak, evaluation - activations);
}

}  // namespace

std::vector<SavedTensorSlot> BlockSavedTensors(const ModelShape& shape) {
  const int64_t c = shape.width;
  return {
      {"residual_1", c, true},
      {"norm_1_mean", 1, false},
      {"norm_1_rstd", 1, false},
      {"norm_1", c, true},
      {"qkv", 3 * c, true},
      {"attention", c, true},
      {"log_sum_exp", shape.heads, false},
      {"residual_2", c, true},
      {"norm_2_mean", 1, false},
      {"norm_2_rstd", 1, false},
      {"norm_2", c, true},
      {"mlp_before_gelu", shape.mlp_width, true},
  };
}

int64_t BlockSavedBytes(const ModelShape& shape, int64_t tokens, int64_t element_bytes) {
  int64_t bytes = 0;
  for (const SavedTensorSlot& slot : BlockSavedTensors(shape)) {
    bytes += tokens * slot.elements_per_token * (slot.compute_type ? element_bytes : kF32);
  }
  return bytes;
}

MemoryBreakdown PredictMemory(const MemoryInputs& inputs) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const ModelShape& shape = inputs.shape;
  const int64_t c = shape.width, f = shape.mlp_width;
  const int64_t padding = (shape.PaddedVocabulary() - shape.vocab_size) * c;
  const int64_t stored = CountParameters(shape).Total() + padding;
  const int64_t packed_elements =
      shape.layers * (4 * c * c + 2 * c * f) + shape.PaddedVocabulary() * c;
  const int64_t packed_type = Widens(inputs) ? kF32 : ElementBytes(inputs.precision->products);

  MemoryBreakdown memory;
  // Vectors are f32 whatever the recipe. Each weight is packed twice: for the forward pass and for
  // the gradient of its input.
  const int64_t matrices = packed_elements + shape.context * c;
  memory.parameters_bytes = ElementBytes(inputs.precision->matrices) * matrices +
                            kF32 * (stored - matrices) + 2 * packed_type * packed_elements;
  memory.gradients_bytes = kF32 * stored;
  memory.optimizer_bytes = 2 * kF32 * stored;
  memory.activations_bytes = ActivationPeak(inputs);
  memory.workspace_bytes = WorkspacePeak(inputs, memory.activations_bytes);
  // A ring all-reduce stages about two buckets.
  memory.communication_bytes = inputs.ranks > 1 ? 2 * inputs.bucket_bytes : 0;
  memory.runtime_bytes = 96 * kMiB + 8 * kMiB * inputs.threads;
  return memory;
}

std::vector<std::string> BlockPolicies(int64_t layers, int64_t recomputed) {
  std::vector<std::string> policies(static_cast<size_t>(layers), "keep");
  std::fill_n(policies.begin(), recomputed, "recompute");
  return policies;
}

}  // namespace weft
