#include "common/model/memory_model.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/model/added_network_cost.h"
#include "common/model/compressed_activations.h"
#include "common/model/gradient_bytes.h"
#include "common/model/host_staging.h"
#include "common/model/model_counts.h"
#include "common/model/model_sizes.h"
#include "common/model/operand_memory.h"
#include "common/model/pass_memory.h"
#include "common/model/reduction_staging.h"
#include "common/model/streamed_units.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;
// Best fit at times cannot use one part in this many of a CUDA device's arena.
constexpr int64_t kUncutShare = 160;

/// Bytes that best fit leaves unused in the arena of a CUDA device where quantised values take the
/// places of the larger tensors that they are made of: as measured, up to a sixth of the quantised
/// values and a place of the largest such tensor.
int64_t FragmentationOfCompressed(const MemoryInputs& inputs) {
  if (inputs.activation_bits == 0) return 0;
  const int64_t compressed =
      CompressedBytes(PlanOfBlocks(inputs), inputs.shape,
                      inputs.micro_batch * inputs.sequence_length, 0, inputs.activation_bits);
  return compressed / 6 + PassSizes(inputs).before;
}

/// Scratch memory that kernels on a CUDA device share: what products may take, or what attention's
/// backward pass keeps of each query, two f32 numbers a head.
int64_t KernelScratch(const MemoryInputs& inputs) {
  if (!inputs.OnCuda()) return 0;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  return std::max(inputs.product_workspace_bytes, 2 * kF32 * tokens * inputs.shape.spec.heads);
}

/// On the host, where the optimizer is offloaded: what techniques take for their work, and pieces
/// through which matrices go up to a CUDA device in another type than they are stored in.
int64_t HostWorkspace(const MemoryInputs& inputs) {
  if (!inputs.offload_optimizer) return 0;
  int64_t of_techniques = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    of_techniques = std::max(of_techniques, technique->HostWorkspaceBytes(inputs));
  }
  const bool converts = inputs.precision->products != inputs.precision->matrices;
  return of_techniques + (inputs.OnCuda() && converts ? kHostStagingBytes : 0);
}

/// Bytes of `numbers` numbers of frozen matrices that products alone read. There mostly are none.
int64_t FrozenMatrixBytes(const MemoryInputs& inputs, int64_t numbers) {
  if (numbers == 0) return 0;
  return ElementBytes(FrozenMatrixType(inputs.shape.spec, *inputs.precision)) * numbers;
}

/// Bytes of values, wherever they are.
int64_t ValueBytes(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  return FrozenMatrixBytes(inputs, shape.only_multiplied) +
         ElementBytes(inputs.precision->matrices) *
             (shape.stored_matrices - shape.only_multiplied) +
         kF32 * (shape.stored - shape.stored_matrices);
}

/// Bytes of values that checkpoints hold.
int64_t SavedValueBytes(const MemoryInputs& inputs) {
  if (!inputs.leaves_out_base) return ValueBytes(inputs);
  const ModelShape& shape = inputs.shape;
  const int64_t matrices = shape.stored_trained_matrices;
  return ElementBytes(inputs.precision->matrices) * (matrices + shape.frozen_adapters) +
         kF32 * (shape.stored_trained - matrices);
}

/// Bytes of values in files.
FiledValues FiledValuesOf(const MemoryInputs& inputs) {
  if (inputs.SharesParameters()) return inputs.sharded.filed.values;
  return FiledValueBytes(inputs.shape, ElementBytes(inputs.precision->matrices),
                         inputs.ShardGroupSize() > 1);
}

/// Bytes of gradients in files.
FiledGradients FiledGradientsOf(const MemoryInputs& inputs) {
  if (inputs.SharesParameters()) {
    const ShardedParameters::Filed& filed = inputs.sharded.filed;
    return {filed.gradients.host, filed.gradients.file, filed.numbers};
  }
  return FiledGradientBytes(inputs.shape, inputs.bucket_bytes, inputs.ShardGroupSize(),
                            inputs.zero_stage > 1);
}

/// Bytes of offloaded values that are kept on the device.
int64_t KeptValueBytes(const MemoryInputs& inputs) {
  const StreamedUnit kept = KeptOnDevice(inputs);
  // Where it is kept it is all of it.
  const bool keeps = kept.trained == 0 && kept.held_matrices() > 0;
  const int64_t frozen = keeps ? inputs.shape.only_multiplied : 0;
  return kF32 * kept.vectors + FrozenMatrixBytes(inputs, frozen) +
         ElementBytes(inputs.precision->matrices) * (kept.held_matrices() - frozen);
}

/// Values on the host; of sharded ones this rank's shard.
int64_t HostValueBytes(const MemoryInputs& inputs) {
  if (inputs.parameters_in_file) return FiledValuesOf(inputs).host;
  if (inputs.SharesParameters()) return inputs.sharded.held;
  return ValueBytes(inputs) - KeptValueBytes(inputs);
}

/// Masks of what is kept on the device: of the matrices of blocks alone.
int64_t KeptMaskBytes(const MemoryInputs& inputs) {
  if (inputs.optimizer.replicated == 0) return 0;
  const ModelShape& shape = inputs.shape;
  int64_t all = 0;
  for (const StreamedUnit& unit :
       StreamedUnits(shape.spec, shape.tensor, shape.tensor_rows, shape.expert_ranks)) {
    all += unit.trained_of_block;
  }
  return all == 0 ? 0 : inputs.optimizer.replicated * inputs.kept.trained_of_block / all;
}

/// State of what is kept on the device: AdamW's, and averages, are of as many bytes for each
/// number.
int64_t KeptStateBytes(const MemoryInputs& inputs) {
  if (inputs.kept.trained == 0) return 0;
  const double share =
      static_cast<double>(inputs.kept.trained) / static_cast<double>(inputs.shape.trained);
  const int64_t moments = inputs.optimizer.state - inputs.optimizer.replicated;
  return static_cast<int64_t>(share * static_cast<double>(moments)) + KeptMaskBytes(inputs);
}

/// The same where gradients of tables take and give back their places among activations, or
/// weights, that come and go: as measured, up to the place of such a table.
int64_t FragmentationOfTables(const MemoryInputs& inputs) {
  const bool come_and_go =
      inputs.offload_parameters || inputs.offload_activations || Transfers(inputs.remat);
  if (!inputs.offload_optimizer || !come_and_go) return 0;
  return kF32 * inputs.shape.PaddedClasses() * EmbeddingWidth(inputs.shape.spec);
}

/// Copies in bf16 of gradients on their way to other ranks: of two or three buckets or units where
/// the memory of these goes once they are reduced, and else of all.
int64_t ReducedCopyBytes(const MemoryInputs& inputs) {
  if (!inputs.bf16_reductions || inputs.ranks == 1) return 0;
  const int64_t gradients = inputs.zero_stage > 2   ? inputs.sharded.open_gradients.in_transfer
                            : inputs.zero_stage > 1 ? inputs.open_gradients.in_transfer
                                                    : kF32 * inputs.shape.Differentiated();
  return gradients / 2;
}

/// Sums of earlier passes that come up to the device while ranks on CUDA devices reduce gradients
/// in every pass and add their shards to them. With a table that classifies that is all there is,
/// in the end.
int64_t BroughtSumBytes(const MemoryInputs& inputs) {
  const int64_t shard_ranks = inputs.ShardGroupSize();
  const bool adds = inputs.zero_stage > 1 && shard_ranks > 1 && inputs.accumulation_steps > 1;
  if (!inputs.OnCuda() || !inputs.offload_optimizer || !adds) return 0;
  const int64_t in_flight = inputs.SharesParameters() ? inputs.sharded.open_gradients.in_transfer
                                                      : inputs.open_gradients.bytes;
  return (in_flight + shard_ranks - 1) / shard_ranks;
}

/// Sums of gradients that a rank has at a time, each as large as the gradients that it keeps: with
/// micro_batch_tree one of each size of subtree, and the last one.
int64_t SumsOfGradients(const MemoryInputs& inputs) {
  if (!inputs.micro_batch_tree) return 1;
  return std::bit_width(static_cast<uint64_t>(inputs.accumulation_steps));
}

/// Copies of what a rank saves while a snapshot is taken: of two machines, which each keep the two
/// newest snapshots and the one that is being written, with what is sent and what is received.
constexpr int64_t kSnapshotCopies = 3 * 2 + 1 + 2;

/// Bytes on the host of gradients that tensor-parallel ranks sum. The host sums offloaded ones,
/// except with a CUDA device, to which they go for that.
int64_t HostCommunication(const MemoryInputs& inputs) {
  return inputs.offload_optimizer && !inputs.OnCuda() ? kF32 * inputs.shape.partial_gradients : 0;
}

/// Bytes of packed copies of auxiliary parameters; ranks that gather these have one block's.
int64_t PackedAuxiliaryBytes(const MemoryInputs& inputs) {
  const PrecisionRecipe& precision = *inputs.precision;
  const bool shares = inputs.SharesParameters();
  if (MultipliesStored(inputs.products)) return 0;
  // Products read these as they are stored, or gathered.
  const bool reads_values = precision.products == DType::kF32 ||
                            precision.products == precision.matrices ||
                            (shares && precision.products == DType::kBF16);
  if (inputs.OnCuda() && reads_values) return 0;
  const int64_t all = inputs.optimizer.auxiliary.packed_bytes;
  return shares ? all / std::max<int64_t>(DistinctBlocks(inputs.shape.spec), 1) : all;
}

/// Adds auxiliary parameters to each component of `memory`.
void AddAuxiliary(const MemoryInputs& inputs, MemoryBreakdown& memory) {
  const AuxiliaryParameters& all = inputs.optimizer.auxiliary;
  if (all.numbers == 0) return;
  const int64_t ranks = inputs.ShardGroupSize();
  const auto part_of = [ranks](int64_t bytes) { return (bytes + ranks - 1) / ranks; };
  const int64_t gradients = kF32 * all.numbers;
  memory.parameters_bytes += PackedAuxiliaryBytes(inputs);
  memory.optimizer_bytes += part_of(all.state_bytes);
  memory.communication_bytes += kF32 * all.partial_gradients;
  if (!inputs.SharesParameters()) {
    const bool shards = inputs.zero_stage > 1 && ranks > 1;
    memory.parameters_bytes += all.value_bytes;
    memory.gradients_bytes += SumsOfGradients(inputs) * (shards ? part_of(gradients) : gradients);
    if (!shards || inputs.shape.stored_trained == 0) return;
    // Buckets are longer by the same share.
    const double share =
        static_cast<double>(all.numbers) / static_cast<double>(inputs.shape.stored_trained);
    memory.gradients_bytes +=
        static_cast<int64_t>(share * static_cast<double>(inputs.open_gradients.bytes));
    return;
  }
  // Values of two blocks are gathered, and gradients of two open, at a time.
  const int64_t blocks = std::max<int64_t>(DistinctBlocks(inputs.shape.spec), 1);
  const auto of_two = [blocks](int64_t bytes) {
    return bytes * std::min<int64_t>(blocks, 2) / blocks;
  };
  memory.parameters_bytes +=
      part_of(all.value_bytes) + of_two(all.numbers * inputs.GatheredElementBytes());
  memory.gradients_bytes += SumsOfGradients(inputs) * part_of(gradients) + of_two(gradients);
}

/// What the device has of `memory`, which is of both tiers.
MemoryBreakdown OfDevice(const MemoryInputs& inputs, MemoryBreakdown memory) {
  memory.snapshots_bytes = 0;
  if (inputs.offload_activations || !inputs.remat.empty()) {
    memory.activations_bytes = ActivationPeaks(inputs).device;
  }
  if (!inputs.offload_optimizer) return memory;
  const bool shares = inputs.SharesParameters();
  memory.parameters_bytes -= HostValueBytes(inputs);
  memory.gradients_bytes =
      (shares ? inputs.sharded.open_gradients.bytes : inputs.open_gradients.bytes) +
      BroughtSumBytes(inputs) + kF32 * inputs.kept.stored_trained;
  memory.optimizer_bytes = KeptStateBytes(inputs);
  memory.workspace_bytes -= HostWorkspace(inputs);
  memory.communication_bytes -= HostCommunication(inputs);
  return memory;
}

/// Copies of the weights of an MLP in f32, from which a technique packs its own form.
int64_t WeightCopyBytes(const MemoryInputs& inputs) {
  const TechniqueProducts& products = inputs.technique_products;
  const bool brings = products.brings_weights && inputs.offload_optimizer && inputs.OnCuda();
  const int64_t copies = (products.copies_weights ? 1 : 0) + (brings ? 1 : 0);
  const ModelSpec& model = inputs.shape.spec;
  return copies * kF32 * MlpInputs(model) * model.width * MlpWidth(model) / inputs.shape.tensor;
}

}  // namespace

int64_t UpdateWorkspaceBytes(const MemoryInputs& inputs) {
  int64_t bytes = std::max(inputs.optimizer.workspace, WeightCopyBytes(inputs));
  for (const TechniqueCost* technique : TechniqueCosts()) {
    bytes = std::max(bytes, technique->WorkspaceBytes(inputs));
  }
  return bytes;
}

int64_t ScratchBytes(const MemoryInputs& inputs) {
  return KernelScratch(inputs) + HostWorkspace(inputs);
}

MemoryBreakdown PredictMemory(const MemoryInputs& inputs) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const ModelShape& shape = inputs.shape;

  MemoryBreakdown memory;
  // Vectors are f32 whatever the recipe.
  const int64_t gathered =
      inputs.offload_parameters ? inputs.sharded.gathered_from_host : inputs.sharded.gathered;
  const int64_t values =
      HostValueBytes(inputs) + KeptValueBytes(inputs) + (inputs.SharesParameters() ? gathered : 0);
  memory.parameters_bytes = values + PackedBytes(inputs) + MergedBytes(inputs) +
                            DequantizedBytes(inputs) + FormatStateBytes(inputs) +
                            TechniqueProductBytes(inputs);
  if (shape.spec.family == "llama") {
    // Cosines and sines of the rotary positions.
    memory.parameters_bytes += kF32 * shape.spec.context * HeadWidth(shape.spec);
  }
  memory.parameters_bytes += AddedNetworkBytesOf(inputs).parameters;
  memory.gradients_bytes = SumsOfGradients(inputs) * kF32 * shape.stored_trained;
  memory.optimizer_bytes = inputs.optimizer.state;
  if (const int64_t shard_ranks = inputs.ShardGroupSize(); shard_ranks > 1) {
    const auto part_of = [](int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; };
    // Experts of expert-parallel ranks are sharded over fewer.
    const bool shares_experts = shape.expert_ranks > 1;
    const int64_t experts = shares_experts ? shape.stored_trained_experts : 0;
    const int64_t expert_shard_ranks = shard_ranks / shape.expert_ranks;
    // Equal parts of what is stored and updated; the rank with most has no padding in its own.
    const double padded = static_cast<double>(shape.stored_trained - shape.derived - experts) /
                          static_cast<double>(std::max<int64_t>(shape.Updated() - experts, 1));
    const OptimizerBytes& optimizer = inputs.optimizer;
    const int64_t part =
        part_of(optimizer.state - optimizer.replicated - optimizer.state_of_experts, shard_ranks);
    memory.optimizer_bytes = static_cast<int64_t>(padded * static_cast<double>(part)) +
                             part_of(optimizer.state_of_experts, expert_shard_ranks) +
                             optimizer.replicated;
    if (inputs.SharesParameters()) {
      memory.gradients_bytes =
          SumsOfGradients(inputs) * inputs.sharded.gradients + inputs.sharded.open_gradients.bytes;
    } else if (inputs.zero_stage > 1) {
      // What is stacked with derived weights is updated in other parts than it is reduced in.
      memory.gradients_bytes = part_of(memory.gradients_bytes - kF32 * experts, shard_ranks) +
                               part_of(kF32 * experts, expert_shard_ranks) +
                               part_of(kF32 * shape.stacked_with_derived, shard_ranks);
      if (!inputs.offload_optimizer) memory.gradients_bytes += inputs.open_gradients.bytes;
    }
  }
  FiledGradients filed;
  if (inputs.parameters_in_file) {
    filed = FiledGradientsOf(inputs);
    memory.gradients_bytes = filed.host;
    if (inputs.SharesParameters()) memory.gradients_bytes += inputs.sharded.open_gradients.bytes;
  }
  if (inputs.optimizer.in_file > 0) {
    int64_t numbers = inputs.optimizer.InFileAmong(inputs.ShardGroupSize(), shape.expert_ranks);
    // Tiles then end with a unit.
    if (inputs.parameters_in_file) numbers = std::min(numbers, 2 * filed.numbers);
    memory.optimizer_bytes += FileBufferBytes(numbers);
  }
  if (inputs.offload_optimizer && !inputs.SharesParameters()) {
    if (inputs.offload_parameters) {
      memory.parameters_bytes += StreamedPeakBytes(inputs) - PackedBytes(inputs);
    } else {
      memory.parameters_bytes += OperandBytes(inputs);
    }
    if (inputs.delayed_update) memory.gradients_bytes *= 2;
    memory.gradients_bytes += inputs.open_gradients.bytes;
  }
  memory.gradients_bytes += BroughtSumBytes(inputs);
  const TierPeaks activations = ActivationPeaks(inputs);
  memory.activations_bytes = activations.device + activations.host;
  memory.workspace_bytes =
      std::max(WorkspacePeak(inputs, activations.device), UpdateWorkspaceBytes(inputs)) +
      ScratchBytes(inputs);
  if (!inputs.OnCuda()) {
    const int64_t groups = inputs.Groups();
    memory.communication_bytes =
        ReductionStagingBytes(inputs.ranks / groups) + ReductionStagingBytes(groups) +
        (shape.expert_ranks > 1 ? ReductionStagingBytes(inputs.ranks / groups / shape.expert_ranks)
                                : 0) +
        ReductionStagingBytes(shape.TensorColumns()) + ReductionStagingBytes(shape.tensor_rows);
    // All groups sum whole gradients of derived weights with each other.
    if (groups > 1 && shape.derived > 0 && inputs.zero_stage == 1) {
      memory.communication_bytes += ReductionStagingBytes(inputs.ranks);
    }
  } else if (inputs.ranks > 1) {
    // A ring all-reduce stages about two buckets, and one of activations as much of these.
    memory.communication_bytes = 2 * inputs.bucket_bytes;
  }
  memory.communication_bytes += kF32 * shape.partial_gradients + ReducedCopyBytes(inputs);
  if (inputs.OnCuda() && shape.tensor > 1) {
    memory.communication_bytes += 2 * ElementBytes(inputs.precision->activations) *
                                  inputs.micro_batch * inputs.sequence_length * shape.spec.width;
  }
  AddAuxiliary(inputs, memory);
  if (inputs.peer_snapshots) {
    // With a sharded optimizer each rank saves its shard.
    const int64_t saved = SavedValueBytes(inputs) + inputs.optimizer.auxiliary.value_bytes;
    memory.snapshots_bytes =
        kSnapshotCopies * (saved / inputs.ShardGroupSize() + memory.optimizer_bytes);
  }
  if (inputs.OnCuda()) {
    memory.runtime_bytes = TotalBytes(OfDevice(inputs, memory)) / kUncutShare +
                           FragmentationOfCompressed(inputs) + FragmentationOfTables(inputs);
  } else {
    memory.runtime_bytes = 96 * kMiB + 8 * kMiB * inputs.threads;
  }
  return memory;
}

MemoryBreakdown PredictDeviceTier(const MemoryInputs& inputs) {
  MemoryBreakdown memory = PredictMemory(inputs);
  if (!inputs.OnCuda()) memory.runtime_bytes = 0;
  return OfDevice(inputs, memory);
}

int64_t UploadedWeightBytes(const MemoryInputs& inputs) {
  return inputs.offload_parameters ? 0 : UploadedBytes(inputs);
}

int64_t ResidentWeightBytes(const MemoryInputs& inputs) {
  return inputs.resident_units.empty() ? 0 : ResidentBytes(inputs);
}

StreamedBytes StreamedWeightBytes(const MemoryInputs& inputs) {
  if (!inputs.offload_parameters) return {};
  if (!inputs.SharesParameters()) return StreamedWholeBytes(inputs);
  const ShardedParameters::OverLink& link = inputs.sharded.link;
  return {.first = link.first, .forward = link.forward, .backward = link.backward};
}

StreamedBytes FiledWeightBytes(const MemoryInputs& inputs) {
  return inputs.parameters_in_file ? FiledWholeBytes(inputs) : StreamedBytes();
}

int64_t FileBytes(const MemoryInputs& inputs) {
  const int64_t moments =
      kF32 * inputs.optimizer.InFileAmong(inputs.ShardGroupSize(), inputs.shape.expert_ranks);
  if (!inputs.parameters_in_file) return moments;
  return moments + FiledValuesOf(inputs).file + FiledGradientsOf(inputs).file;
}

int64_t OffloadedActivationBytes(const MemoryInputs& inputs) {
  return inputs.offload_activations || !inputs.remat.empty() ? ActivationPeaks(inputs).host : 0;
}

int64_t ProductWorkspaceBytes(std::string_view compute_capability) {
  const bool older = compute_capability.starts_with("7.") || compute_capability.starts_with("8.");
  return int64_t{older ? 4 : 32} << 20;
}

int64_t BytesOutsideArena(const MemoryInputs& inputs) {
  // What comes up is in the arena, and so is what is gathered, except what kernels make of it.
  const bool made = inputs.technique_products.brings_weights &&
                    (inputs.offload_optimizer || inputs.SharesParameters());
  const int64_t of_techniques =
      made ? TechniqueOperandBytes(inputs) : TechniqueOperandsBeyondDense(inputs);
  const int64_t of_kernels = KernelScratch(inputs) + of_techniques;
  if (inputs.offload_optimizer) return of_kernels;
  if (inputs.format() == nullptr) {
    return PackedBytes(inputs) + PackedAuxiliaryBytes(inputs) + AddedNetworkBytesOf(inputs).packed +
           of_kernels;
  }
  // Operands in a format are tensors of the arena.
  return ElementBytes(inputs.precision->products) * DenseCopies(inputs) + of_kernels;
}

std::vector<std::string> BlockPolicies(int64_t layers, int64_t recomputed, int64_t attention) {
  std::vector<std::string> policies(static_cast<size_t>(layers), "keep");
  std::fill_n(policies.begin(), recomputed, "recompute");
  std::fill_n(policies.begin() + recomputed, attention, "attention");
  return policies;
}

}  // namespace weft
