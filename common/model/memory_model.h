#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_shape.h"
#include "common/model/optimizer_bytes.h"
#include "common/model/precision.h"
#include "common/spec/plan.h"
#include "common/spec/train_spec.h"

namespace weft {

/// A tensor that a block keeps from its forward pass for its backward pass.
struct SavedTensorSlot {
  std::string_view name;
  int64_t elements_per_token = 0;
  bool compute_type = true;  ///< In the type of activations; otherwise f32.
};

/// What a block with the policy "keep" saves. With "recompute" it saves the first one alone.
std::vector<SavedTensorSlot> BlockSavedTensors(const ModelShape& shape);

/// Bytes of that table for `tokens` tokens.
int64_t BlockSavedBytes(const ModelShape& shape, int64_t tokens, int64_t element_bytes);

/// How a processor multiplies matrices of a type, from the least memory to the most.
enum class ProductKind : uint8_t {
  kSplit,    ///< Weights as they are stored, where sizes are multiples of 32; others are packed as
             ///< f32 (f32 and f16 on AMX).
  kNative,   ///< Weights are packed in that type.
  kWidened,  ///< Weights are packed as f32, and other operands widened for each product.
};

/// What the memory of a rank depends on.
struct MemoryInputs {
  ModelShape shape;
  int64_t micro_batch = 1;
  int64_t sequence_length = 1;
  int64_t accumulation_steps = 1;
  int64_t ranks = 1;
  int64_t threads = 1;
  int64_t bucket_bytes = 0;
  const PrecisionRecipe* precision = &kBf16Precision;
  ProductKind products = ProductKind::kNative;  ///< For precision->products.
  Fp8Spec fp8;                                  ///< Where the precision has fp8_blocks.
  OptimizerBytes optimizer;
  int64_t recomputed_blocks = 0;  ///< The first ones, which are the best ones to recompute.
};

/// Bytes of a rank by component at their peaks, as the engine's allocator counts them in training
/// steps. `runtime_bytes` is an allowance for what no allocator sees: code, libraries, stacks.
MemoryBreakdown PredictMemory(const MemoryInputs& inputs);

/// The policy list of a plan: the first `recomputed` of `layers` blocks recompute. Their replay
/// comes last in the backward pass, when the blocks that keep have given back their memory.
std::vector<std::string> BlockPolicies(int64_t layers, int64_t recomputed);

}  // namespace weft
