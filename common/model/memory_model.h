#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/context_attention.h"
#include "common/model/gradient_bytes.h"
#include "common/model/model_shape.h"
#include "common/model/optimizer_bytes.h"
#include "common/model/precision.h"
#include "common/model/remat_memory.h"
#include "common/model/remat_schedule.h"
#include "common/model/saved_tensor.h"
#include "common/model/sharded_parameters.h"
#include "common/model/streamed_units.h"
#include "common/model/technique_products.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/spec/shard_ranks.h"

namespace weft {

/// A tensor that a block saves for its backward pass.
struct SavedTensorSlot {
  SavedTensor tensor = SavedTensor::kResidual1;
  int64_t elements_per_token = 0;
  bool compute_type = true;  ///< In the type of activations; otherwise f32.
  bool in_attention = false;
  bool compressible = false;  ///< With activation_bits.
};

/// The tensors that a block with the policy "keep" saves. With "recompute" it saves the first one
/// alone, with "attention" all but those inside of attention.
std::vector<SavedTensorSlot> BlockSavedTensors(const ModelShape& shape);

/// Bytes of that table for `tokens` tokens, with compressible tensors quantised to
/// `activation_bits`.
int64_t BlockSavedBytes(const ModelShape& shape, int64_t tokens, int64_t element_bytes,
                        int64_t activation_bits = 0);

/// How a processor multiplies matrices of a type, from the least memory to the most.
enum class ProductKind : uint8_t {
  kUnpacked,  ///< Weights as they are stored (f32 without AVX-512).
  kSplit,     ///< Weights as they are stored, where sizes are multiples of 32; others are packed as
              ///< f32 (f32 and f16 on AMX).
  kTiles,     ///< Weights are packed in that type, of matrices whose sizes are multiples of 32
              ///< straight from what is stored elsewhere (bf16 on AMX).
  kNative,    ///< Weights are packed in that type, in blocks of rows and columns.
  kWidenedUnpacked,  ///< Weights as they are stored, and results of each product in f32 before they
                     ///< are rounded (bf16 and f16 without AVX-512).
  kWidened,  ///< Weights are packed as f32, and other operands widened for each product (f16 on
             ///< AVX-512, and bf16 where that has no instructions for it).
  kStored,   ///< CUDA: weights as they are stored where that is the type, else copies of it.
};

/// A kind that takes at least the memory of either.
inline ProductKind Fuller(ProductKind a, ProductKind b) {
  const bool widened = a == ProductKind::kWidenedUnpacked || b == ProductKind::kWidenedUnpacked;
  return a != b && widened ? ProductKind::kWidened : std::max(a, b);
}

/// The units that multiply like that.
inline ComputeUnits ComputeUnitsOf(ProductKind kind) {
  if (kind == ProductKind::kStored) return ComputeUnits::kCuda;
  const bool amx = kind == ProductKind::kSplit || kind == ProductKind::kTiles;
  return amx ? ComputeUnits::kCpuMatrix : ComputeUnits::kCpuVector;
}

/// Whether it has no copies of matrices.
inline bool MultipliesStored(ProductKind kind) {
  return kind == ProductKind::kUnpacked || kind == ProductKind::kWidenedUnpacked;
}

/// Whether it has f32 copies of operands or results of each product.
inline bool WidensOperands(ProductKind kind) {
  return kind == ProductKind::kWidenedUnpacked || kind == ProductKind::kWidened;
}

/// Scratch memory of matrix products on a CUDA device of this compute capability ("9.0"): what
/// cuBLASLt is allowed, the library's own recommendation.
int64_t ProductWorkspaceBytes(std::string_view compute_capability);

/// What the memory of a rank depends on; MemoryInputsOf (memory_inputs.h) fills it.
struct MemoryInputs {
  ModelShape shape;
  int64_t micro_batch = 1;
  int64_t sequence_length = 1;
  int64_t prefix_rows = 0;  ///< Of a sequence besides those, in keys and values alone.
  int64_t accumulation_steps = 1;
  int64_t ranks = 1;
  int64_t zero_stage = 0;
  int64_t threads = 1;
  int64_t bucket_bytes = 0;
  const PrecisionRecipe* precision = &kBf16Precision;
  ProductKind products = ProductKind::kTiles;  ///< For precision->products; says the device, too.
  int64_t product_workspace_bytes = 0;         ///< On a CUDA device: ProductWorkspaceBytes.
  FormatBlocks format_blocks;                  ///< FormatBlocksOf `precision`.
  TechniqueProducts technique_products;        ///< TechniqueProductsOf the training.
  JobWorkspace job_workspace;                  ///< WorkspaceOf the job.
  OptimizerBytes optimizer;
  OpenGradients open_gradients;      ///< OpenGradientBytes, with zero_stage 2.
  ShardedParameters sharded;         ///< ShardParameters of a group, with zero_stage 3.
  int64_t recomputed_blocks = 0;     ///< The first ones, which are the best ones to recompute.
  bool delayed_update = false;       ///< Then gradients twice in the host tier.
  bool offload_optimizer = false;    ///< Values, gradients and state in the host tier,
  StreamedUnit kept;                 ///< except those of units whose SumOfUnits this is.
  int64_t attention_blocks = 0;      ///< After them, those that recompute attention alone.
  int64_t recompute_segment = 1;     ///< Blocks recomputed at once.
  RematPlan remat;                   ///< Where it is not empty, instead of the three above.
  int64_t activation_bits = 0;       ///< Of what blocks save; 0: not quantised.
  bool offload_activations = false;  ///< What blocks save, in the host tier.
  bool offload_parameters = false;   ///< With offload_optimizer: two units on the device at once,
  std::vector<int64_t> resident_units;  ///< and these, which stay once they have come.
  bool parameters_in_file = false;  ///< With that: values and gradients, a few units on the host.
  int64_t zero_shard_ranks = 0;     ///< Ranks of a shard group; 0: all `ranks`.
  ContextSharing context;           ///< Then sequence_length is of the part that a rank has.
  bool bf16_reductions = false;     ///< Gradients are reduced between ranks in bf16.
  bool micro_batch_tree = false;    ///< Gradients of micro-batches are added in a binary tree.
  bool peer_snapshots = false;      ///< States are kept in the memory of two machines,
  bool leaves_out_base = false;     ///< without the frozen network (LeavesOutBase).
  std::optional<ModelShape> added_network;  ///< Frozen and whole; its logits are added.
  bool keeps_own_logits = false;            ///< As TechniqueCost::KeepsOwnLogits.
  bool local_steps = false;  ///< Of `ranks` those of a worker sum gradients in every step.
  /// The network that evaluations compute, where steps compute some of its units (RankUnits).
  std::optional<ModelSpec> evaluated;

  /// Rows that the products with keys and values work on.
  int64_t AttendedRows() const { return micro_batch * (sequence_length + prefix_rows); }
  bool OnCuda() const { return products == ProductKind::kStored; }
  /// The format of the products with the weights of blocks, or null.
  const ProductFormat* format() const { return precision->block_products; }
  /// Gradients are open, besides the rank's own sums, until they are reduced or sent.
  bool HasOpenGradients() const { return zero_stage == 2 || offload_optimizer; }
  bool HasHostMemoryPool() const { return offload_optimizer || offload_activations; }

  /// Number of ranks over which zero_stage shards.
  int64_t ShardGroupSize() const { return ShardRanks(zero_stage, zero_shard_ranks, ranks); }
  /// Whether they hold parts of the parameters.
  bool SharesParameters() const { return zero_stage > 2 && ranks > 1; }
  /// Bytes of a number of a block's matrix, where these are gathered.
  int64_t GatheredElementBytes() const {
    const DType gathered = GatheredMatrices(precision->products, micro_batch_tree, OnCuda());
    return ElementBytes(gathered == DType::kBF16 ? gathered : precision->matrices);
  }
  /// Groups of ranks that sum gradients, or parts of them, before these are summed over the groups
  /// or, with local_steps, what they have learned is.
  int64_t Groups() const {
    if (local_steps) return ranks / context.ranks;
    return ShardGroupSize() > 1 ? ranks / ShardGroupSize() : 1;
  }
};

/// Bytes of a rank by component at their peaks, as the engine's allocator counts them in training
/// steps. `runtime_bytes` is an allowance for what no allocator sees: code, libraries, stacks. On a
/// CUDA device all is the device's memory: workspace includes the scratch memory of kernels, and
/// runtime_bytes is what cutting memory to size leaves unused; the CUDA context is no part of what
/// a device offers. With offload it is the sum of both tiers, for the host only what the engine
/// allocates. Snapshots are in the machine's memory, outside of all accounts of the engine.
MemoryBreakdown PredictMemory(const MemoryInputs& inputs);

/// The part of PredictMemory on the device, on CPUs without runtime_bytes; all of it without
/// offload.
MemoryBreakdown PredictDeviceTier(const MemoryInputs& inputs);

/// Bytes of weights that go up to the device after an update, with offload_optimizer; none with
/// offload_parameters.
int64_t UploadedWeightBytes(const MemoryInputs& inputs);

/// Bytes of the weights of resident_units, which go up in the first forward pass of a step.
int64_t ResidentWeightBytes(const MemoryInputs& inputs);

/// Bytes that go up to the device in the forward and in the backward pass of a micro-batch with
/// offload_parameters, except those of resident_units.
struct StreamedBytes {
  int64_t first = 0;     ///< Of them those of the embeddings, for which the forward pass waits.
  int64_t forward = 0;   ///< All.
  int64_t backward = 0;  ///< All except looked-up tables, the last block and the head.
};
StreamedBytes StreamedWeightBytes(const MemoryInputs& inputs);

/// Bytes that these passes read from the files with parameters_in_file, for a rank that has whole
/// values.
StreamedBytes FiledWeightBytes(const MemoryInputs& inputs);

/// Bytes of files below the host tier: of moments (OptimizerBytes::in_file), and with
/// parameters_in_file of values and gradients.
int64_t FileBytes(const MemoryInputs& inputs);

/// Bytes that go down in the forward pass of a micro-batch with offload_activations, and up again
/// in its backward pass.
int64_t OffloadedActivationBytes(const MemoryInputs& inputs);

/// The part of PredictMemory on a CUDA device that kernels allocate themselves, outside the arena
/// of the engine (worker/engine/tensor/device_arena.h): copies of weights, and scratch memory.
int64_t BytesOutsideArena(const MemoryInputs& inputs);

/// The policy list of a plan: the first `recomputed` of `layers` blocks recompute, the next
/// `attention` ones their attention. Their replay comes last in the backward pass, when the blocks
/// that keep have given back their memory.
std::vector<std::string> BlockPolicies(int64_t layers, int64_t recomputed, int64_t attention = 0);

/// The bytes of what a block makes of a micro-batch.
BlockBytes BlockBytesOf(const MemoryInputs& inputs);

/// Bytes of workspace of a step's update, which has it after the passes,
int64_t UpdateWorkspaceBytes(const MemoryInputs& inputs);
/// and of what exists during both.
int64_t ScratchBytes(const MemoryInputs& inputs);

/// Bytes of activations that blocks quantise to activation_bits, and of their quantised form, that
/// the forward pass of a micro-batch reads and writes; its backward pass does as many.
int64_t CompressedActivationBytes(const MemoryInputs& inputs);

}  // namespace weft
