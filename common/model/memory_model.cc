#include "common/model/memory_model.h"

#include <algorithm>
#include <utility>

#include "common/model/activation_codes.h"
#include "common/model/gradient_bytes.h"
#include "common/model/host_staging.h"
#include "common/model/model_counts.h"
#include "common/model/operand_memory.h"
#include "common/model/reduction_staging.h"
#include "common/model/streamed_units.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;
// Of the arena of a CUDA device, the part that best fit at times cannot use.
constexpr int64_t kUncutShare = 160;

/// Bytes of an element of activations.
int64_t ElementOf(const MemoryInputs& inputs) {
  return ElementBytes(inputs.precision->activations);
}

/// f32 numbers a norm keeps of a token: mean and deviation, or the deviation.
int64_t NormStatistics(const ModelSpec& model) {
  return model.family == "llama" ? 1 : 2;
}

int64_t HeadRowsOf(const MemoryInputs& inputs) {
  return HeadRows(inputs.shape, inputs.micro_batch * inputs.sequence_length,
                  inputs.sequence_length);
}

/// 32-bit numbers that a router keeps of a token: probabilities, and of each choice the expert, its
/// weight and its place.
int64_t RouteNumbers(const ModelSpec& model) {
  return model.experts > 0 ? model.experts + 3 * model.experts_per_token : 0;
}

/// Rows of one expert for each token of the own, at most.
int64_t RowsOfOneExpert(const ModelShape& shape) {
  return std::min(shape.expert_ranks, shape.ExpertRows());
}

/// Bytes of the tensors that come and go, for the tokens of a micro-batch.
struct Sizes {
  int64_t row;            ///< [tokens, width], of the features that are here.
  int64_t attended;       ///< [tokens, width], of the heads that are here.
  int64_t qkv;            ///< Queries, keys and values.
  int64_t inner;          ///< Inside of the MLP, after the activation.
  int64_t before;         ///< The same before it; of all experts.
  int64_t passed = 0;     ///< Before and behind the experts.
  int64_t active = 0;     ///< Inside of one expert, after the activation.
  int64_t exchanged = 0;  ///< Results of experts, or their gradients, for tokens of several ranks.
  int64_t narrow;         ///< A row of a factorised embedding; 0 without.
  int64_t head;           ///< [rows of the head, width]

  explicit Sizes(const MemoryInputs& inputs) {
    const ModelSpec& model = inputs.shape.spec;
    const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
    const int64_t element = tokens * ElementOf(inputs);
    const int64_t rows = inputs.shape.tensor_rows, columns = inputs.shape.TensorColumns();
    row = element * model.width / rows;
    attended = element * model.width / columns;
    qkv = element * (model.width + 2 * KvWidth(model)) / columns;
    inner = element * MlpWidth(model) / columns;
    const int64_t expert_rows = inputs.shape.ExpertRows();
    before = MlpInputs(model) * inner * expert_rows;
    if (model.experts > 0) {
      // What experts read and what the own tokens get of them, and where it goes.
      passed = row * (expert_rows + model.experts_per_token) + kF32 * tokens * RouteNumbers(model);
      active = inner * RowsOfOneExpert(inputs.shape);
    }
    if (inputs.shape.expert_ranks > 1) exchanged = row * expert_rows;
    narrow = element * model.embedding_width;
    head = HeadRowsOf(inputs) * ElementOf(inputs) * model.width / rows;
  }
};

/// What the embeddings leave saved for the backward pass, if it reaches them.
int64_t SavedByEmbeddings(const MemoryInputs& inputs, const Sizes& size) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  // The sum of tokens, positions and segments, which the norm reads.
  if (model.family == "bert") return size.row + NormStatistics(model) * kF32 * tokens;
  // The patches, which the projection reads.
  if (model.family == "vit") {
    return (tokens - inputs.micro_batch) * PatchPixels(model) * ElementOf(inputs);
  }
  // The input of a factorised embedding's projection.
  return size.narrow;
}

/// Results between the blocks and the logits, at most, beside the residual stream.
int64_t HeadActivations(const MemoryInputs& inputs, const Sizes& size) {
  const ModelSpec& model = inputs.shape.spec;
  const std::string head = HeadOf(model);
  const std::string norms = NormPositionOf(model);
  const int64_t statistics = NormStatistics(model) * kF32;
  if (head == "causal_lm") {
    const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
    int64_t last = size.row + size.narrow;  // what the classifier reads
    if (norms == "pre") last += size.row + statistics * tokens;
    if (norms == "post") last -= size.row;
    return last;
  }
  if (model.family == "vit") return size.row;  // the sum, before class tokens are taken from it
  // Of the masked ones the stream is given up for four results; of first tokens it stays.
  if (head == "classification") return 3 * size.head;
  return std::max(size.head, 4 * size.head + statistics * HeadRowsOf(inputs) - size.row);
}

/// What the blocks do with their saved tensors.
RematPlan PlanOfBlocks(const MemoryInputs& inputs) {
  if (!inputs.remat.empty()) return inputs.remat;
  const int64_t layers = inputs.shape.spec.layers;
  RematPlan plan =
      RematOfPolicies(BlockPolicies(layers, inputs.recomputed_blocks, inputs.attention_blocks),
                      layers, inputs.recompute_segment);
  return inputs.offload_activations ? AllOnHost(std::move(plan)) : std::move(plan);
}

/// Peak of saved tensors and of the results that are alive beside them, in each tier.
TierPeaks ActivationPeaks(const MemoryInputs& inputs) {
  const Sizes size(inputs);
  // The embedding; as soon as a block saves it, it counts there.
  StreamBytes start{.stream = size.row};
  if (inputs.shape.embeds && inputs.shape.first_trained_layer == 0) {
    start.saved = SavedByEmbeddings(inputs, size);
  }
  // Those of a bert or vit are sums of several tables.
  const int64_t tables = (HeadOf(inputs.shape.spec) == "causal_lm" ? 1 : 4) * size.row;
  const int64_t last = inputs.shape.has_head ? HeadActivations(inputs, size) : size.row;
  const BlockBytes block = BlockBytesOf(inputs);
  TierPeaks peaks;
  if (inputs.offload_activations || !inputs.remat.empty()) {
    peaks = PeakOfBlocks(PlanOfBlocks(inputs), block, start, last);
  } else {
    peaks.device =
        PeakOfFirstBlocks(inputs.shape.spec.layers, inputs.recomputed_blocks,
                          inputs.attention_blocks, inputs.recompute_segment, block, start, last);
  }
  peaks.device = std::max(peaks.device, start.saved + tables);
  return peaks;
}

/// Pictures of a micro-batch, which nothing needs once they are cut into patches.
int64_t PixelBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  if (model.family != "vit") return 0;
  return kF32 * inputs.micro_batch * ImagePatches(model) * PatchPixels(model);
}

/// Of a micro-batch, where kernels read it, but for pictures.
int64_t BatchBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const std::string head = HeadOf(model);
  const int64_t sequences = inputs.micro_batch;
  const int64_t tokens = sequences * inputs.sequence_length;
  const int64_t starts = sequences + 1;
  // Position and row of each token, labels.
  if (model.family == "vit") return kF32 * (2 * tokens + starts + sequences);
  // Token, position and target or type.
  if (head != "masked_lm") return kF32 * (3 * tokens + starts + sequences);
  return kF32 * (4 * tokens + starts + 2 * HeadRowsOf(inputs));
}

/// What attention to a part of the keys wants on a CUDA device (kernels/attention_part), for blocks
/// of half of the tokens that a rank has of a sequence.
int64_t PartWorkspace(const MemoryInputs& inputs) {
  if (!inputs.OnCuda() || inputs.context.ranks == 1 || inputs.context.ulysses) return 0;
  const ModelSpec& model = inputs.shape.spec;
  return inputs.sequence_length / 2 *
         (kF32 * model.heads + ElementOf(inputs) * (model.width + 2 * KvWidth(model))) /
         inputs.shape.TensorColumns();
}

int64_t WorkspacePeak(const MemoryInputs& inputs, int64_t activations) {
  const ModelShape& shape = inputs.shape;
  const ModelSpec& model = shape.spec;
  const Sizes size(inputs);
  const int64_t element = ElementOf(inputs);
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t head_rows = HeadRowsOf(inputs);
  const int64_t columns = shape.PaddedClasses();
  const int64_t chunk = std::min(LogitsChunkRows(columns, head_rows, element), head_rows);
  const bool narrow = size.narrow > 0 && !model.untied_classifier;

  const int64_t batches = inputs.accumulation_steps * BatchBytes(inputs) +
                          (inputs.accumulation_steps - 1) * PixelBytes(inputs);
  // Losses and, where they are counted, right answers.
  int64_t verdicts = (HeadOf(model) == "classification" ? 2 : 1) * kF32 * head_rows;
  // What ranks that share the classifier tell each other of each row.
  if (shape.TensorColumns() > 1) verdicts += 3 * kF32 * shape.TensorColumns() * chunk;
  // Where ranks share tokens between shards, the classifier's are gathered.
  const int64_t gathered = shape.sequence_parallel ? size.head : 0;
  const int64_t head = !shape.has_head ? 0
                                       : chunk * columns * element + verdicts + gathered +
                                             (narrow ? size.narrow : size.head);
  // Gradients around the activation and its result again; SwiGLU needs room for both gradients.
  int64_t mlp_backward = size.row + 2 * size.inner + (MlpInputs(model) > 1 ? size.before : 0);
  // Experts have their gradients in the place of what they kept, but for one activation, of all
  // tokens at most.
  if (model.experts > 0) mlp_backward = 2 * size.row + size.active;
  if (shape.expert_ranks > 1) {
    // And for those that come from other ranks, beside those of the router.
    const int64_t router = tokens * (model.experts_per_token * kF32 + model.experts * element);
    mlp_backward = std::max(2 * size.row, size.row + size.active + size.exchanged + router);
  }
  // While ranks attend together, and after that, when the gradient of what it read is made.
  const int64_t attending = size.attended + PartWorkspace(inputs) +
                            ContextWorkspaceBytes(shape, inputs.context, tokens, element);
  int64_t attention_backward = size.row + size.qkv + std::max(size.row, attending);
  if (inputs.precision->fp8_blocks) {
    // The gradient's codes by rows and by columns, and those of the input by columns.
    const int64_t up = 2 * size.row + 2 * size.before + size.row / 2;
    mlp_backward = std::max(mlp_backward + size.row + size.inner / 2, up);
    attention_backward = std::max(attention_backward, 2 * size.row + 2 * size.qkv + size.row / 2);
  }
  if (inputs.activation_bits > 0) {
    // What is restored stands beside the gradients.
    const RestoredTensors restored = RestoredTensorsOf(PlanOfBlocks(inputs));
    const int64_t alone = restored.alone * size.row, inputs_too = restored.inputs * size.row;
    mlp_backward += std::max(alone, restored.in_block ? size.before + inputs_too : 0);
    const auto beside = [&](int64_t gradients, int64_t own) {
      return gradients + std::max(alone, restored.in_block ? own + inputs_too : 0);
    };
    attention_backward =
        inputs.precision->fp8_blocks
            ? beside(attention_backward, size.row)
            : size.row + size.qkv +
                  std::max(beside(size.row, size.row), beside(attending, size.attended));
  }
  // Of blocks that the backward pass does not come to.
  if (shape.first_trained_layer == model.layers) mlp_backward = attention_backward = 0;
  // The gradient of a scaled branch is not that of the stream.
  const bool scaled = BranchScalingOf(model) != BranchScaling::kNone;
  const int64_t branch = scaled ? size.row : 0;
  int64_t peak = std::max({head, mlp_backward + branch, attention_backward + branch});
  if (WidensOperands(inputs.products)) {
    // f32 copies of the result of the largest product, and else of its other operand.
    const int64_t widest = std::max(MlpInputs(model) * MlpWidth(model), 3 * model.width);
    const int64_t other = inputs.products == ProductKind::kWidenedUnpacked ? 0 : model.width;
    peak += kF32 * std::max(chunk * (columns + other), tokens * (widest + other));
  }
  // An evaluation saves nothing, but all results of a block count as workspace.
  const int64_t inner = model.experts > 0 ? size.active : size.inner;
  const int64_t evaluation = 4 * size.row + std::max(size.row, size.attended) + size.qkv + inner +
                             size.before + size.passed + size.exchanged;
  return batches + std::max({peak, PixelBytes(inputs), evaluation - activations});
}

/// Room for carrying the gradient of a weight to the factors of its product: a packed copy of the
/// gradient, and f32 copies of factors that are not.
int64_t FactorWorkspace(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  if (shape.spec.over_parameterization.kind != "linear_expansion") return 0;
  const bool narrow = inputs.precision->matrices != DType::kF32;
  const bool stored = inputs.OnCuda() || MultipliesStored(inputs.products);
  const int64_t packed = stored ? 0 : shape.largest_factored;
  return kF32 * (packed + (narrow ? shape.largest_factor : 0));
}

int64_t SlotBytes(const SavedTensorSlot& slot, int64_t tokens, int64_t element_bytes,
                  int64_t activation_bits) {
  if (activation_bits > 0 && slot.compressible) {
    return CodeBytes(tokens * slot.elements_per_token, activation_bits);
  }
  return tokens * slot.elements_per_token * (slot.compute_type ? element_bytes : kF32);
}

/// Of the arena of a CUDA device, what best fit leaves unused where codes stand in the places of
/// the larger tensors that they are made of: as measured, up to a sixth of the codes and a place of
/// the largest such tensor.
int64_t HolesBesideCodes(const MemoryInputs& inputs) {
  if (inputs.activation_bits == 0) return 0;
  const int64_t codes =
      CodedBytes(PlanOfBlocks(inputs), inputs.shape, inputs.micro_batch * inputs.sequence_length, 0,
                 inputs.activation_bits);
  return codes / 6 + Sizes(inputs).before;
}

/// Of kernels on a CUDA device, which share it: what products may take, or what attention's
/// backward pass keeps of each query, two f32 numbers a head.
int64_t KernelScratch(const MemoryInputs& inputs) {
  if (!inputs.OnCuda()) return 0;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  return std::max(inputs.product_workspace_bytes, 2 * kF32 * tokens * inputs.shape.spec.heads);
}

/// Pieces through which matrices go up to a CUDA device in another type than they are stored in.
int64_t HostStaging(const MemoryInputs& inputs) {
  const bool converts = inputs.precision->products != inputs.precision->matrices;
  return inputs.offload_optimizer && inputs.OnCuda() && converts ? kHostStagingBytes : 0;
}

/// Bytes of values, wherever they are.
int64_t ValueBytes(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  return ElementBytes(inputs.precision->matrices) * shape.stored_matrices +
         kF32 * (shape.stored - shape.stored_matrices);
}

/// Of values in files.
FiledValues FiledValuesOf(const MemoryInputs& inputs) {
  if (inputs.SharesParameters()) return inputs.sharded.filed.values;
  return FiledValueBytes(inputs.shape.spec, ElementBytes(inputs.precision->matrices),
                         inputs.shape.tensor, inputs.shape.tensor_rows, inputs.shape.expert_ranks);
}

/// Of gradients in files.
FiledGradients FiledGradientsOf(const MemoryInputs& inputs) {
  if (inputs.SharesParameters()) {
    const ShardedParameters::Filed& filed = inputs.sharded.filed;
    return {filed.gradients.host, filed.gradients.file, filed.numbers};
  }
  return FiledGradientBytes(inputs.shape.spec, inputs.bucket_bytes, inputs.shape.tensor,
                            inputs.shape.tensor_rows, inputs.Sharers(), inputs.zero_stage > 1,
                            inputs.shape.expert_ranks);
}

/// Values on the host, of ranks that share them their parts.
int64_t HostValueBytes(const MemoryInputs& inputs) {
  if (inputs.parameters_in_file) return FiledValuesOf(inputs).host;
  return inputs.SharesParameters() ? inputs.sharded.held : ValueBytes(inputs);
}

/// The same where gradients of tables take and give back their places among activations, or
/// weights, that come and go: as measured, up to the place of such a table.
int64_t HolesBesideTables(const MemoryInputs& inputs) {
  const bool come_and_go =
      inputs.offload_parameters || inputs.offload_activations || Travels(inputs.remat);
  if (!inputs.offload_optimizer || !come_and_go) return 0;
  return kF32 * inputs.shape.PaddedClasses() * EmbeddingWidth(inputs.shape.spec);
}

/// What the device has of `memory`, which is of both tiers.
MemoryBreakdown OfDevice(const MemoryInputs& inputs, MemoryBreakdown memory) {
  if (inputs.offload_activations || !inputs.remat.empty()) {
    memory.activations_bytes = ActivationPeaks(inputs).device;
  }
  if (!inputs.offload_optimizer) return memory;
  const bool shares = inputs.SharesParameters();
  memory.parameters_bytes -= HostValueBytes(inputs);
  memory.gradients_bytes = shares ? inputs.sharded.open_gradients : inputs.open_gradients;
  memory.optimizer_bytes = 0;
  memory.workspace_bytes -= HostStaging(inputs);
  return memory;
}

}  // namespace

std::vector<SavedTensorSlot> BlockSavedTensors(const ModelShape& shape) {
  const ModelSpec& model = shape.spec;
  const int64_t c = model.width, ranks = shape.TensorColumns(), rows = shape.StreamRanks();
  const bool norms = NormPositionOf(model) != "none";
  std::vector<SavedTensorSlot> slots;
  const auto add_norm = [&](std::string_view residual, std::string_view statistics,
                            std::string_view result) {
    slots.push_back({residual, c / rows, true, false, norms});
    if (!norms) return;
    slots.push_back({statistics, NormStatistics(model), false});
    slots.push_back({result, c / rows, true, false, true});
  };
  add_norm("residual_1", "norm_1_statistics", "norm_1");
  slots.push_back({"qkv", (c + 2 * KvWidth(model)) / ranks, true, true});
  slots.push_back({"attention", c / ranks, true, true, true});
  slots.push_back({"log_sum_exp", model.heads / ranks, false, true});
  const bool scaled = BranchScalingOf(model) != BranchScaling::kNone;
  if (scaled) slots.push_back({"branch_1", c, true});
  add_norm("residual_2", "norm_2_statistics", "norm_2");
  if (model.experts > 0) {
    const int64_t expert_rows = shape.ExpertRows();
    slots.push_back({"route", RouteNumbers(model), false});
    slots.push_back({"expert_inputs", expert_rows * c});
    slots.push_back({"experts_before_activation", expert_rows * 2 * MlpWidth(model) / ranks});
    slots.push_back({"expert_results", model.experts_per_token * c});
  } else {
    slots.push_back(
        {"mlp_before_activation", MlpInputs(model) * MlpWidth(model) / ranks, true, false, true});
  }
  if (scaled) slots.push_back({"branch_2", c, true});
  return slots;
}

int64_t BlockSavedBytes(const ModelShape& shape, int64_t tokens, int64_t element_bytes,
                        int64_t activation_bits) {
  int64_t bytes = 0;
  for (const SavedTensorSlot& slot : BlockSavedTensors(shape)) {
    bytes += SlotBytes(slot, tokens, element_bytes, activation_bits);
  }
  return bytes;
}

BlockBytes BlockBytesOf(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const Sizes size(inputs);
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  BlockBytes bytes{.row = size.row,
                   .attended = size.attended,
                   .qkv = size.qkv,
                   .before = size.before + size.passed,
                   .log_sum_exp = kF32 * tokens * model.heads / inputs.shape.TensorColumns(),
                   .post_norm = NormPositionOf(model) == "post",
                   // Fixup saves the shifted stream, so that the stream itself is alive beside it.
                   .compressed = inputs.activation_bits > 0,
                   .shifted = BranchScalingOf(model) == BranchScaling::kFixup,
                   .untrained = inputs.shape.first_trained_layer};
  const std::vector<SavedTensorSlot> slots = BlockSavedTensors(inputs.shape);
  const auto kept = [&](int64_t bits) {
    BlockBytes::Kept sum;
    for (const SavedTensorSlot& slot : slots) {
      const int64_t held = SlotBytes(slot, tokens, ElementOf(inputs), bits);
      sum.saved += held;
      if (slot.in_attention) sum.attention += held;
      if (sum.attention == 0) sum.entry += held;
    }
    return sum;
  };
  bytes.plain = kept(0);
  for (const SavedTensorSlot& slot : slots) {
    if (!bytes.post_norm || (slot.name != "residual_2" && slot.name != "norm_2_statistics"))
      continue;
    bytes.last_norm += SlotBytes(slot, tokens, ElementOf(inputs), inputs.activation_bits);
  }
  const int64_t bits = inputs.activation_bits, width = model.width / inputs.shape.StreamRanks();
  bytes.kept = bits == 0 ? bytes.plain : kept(bits);
  bytes.input = bits == 0 ? size.row : CodeBytes(tokens * width, bits);
  return bytes;
}

int64_t CodedActivationBytes(const MemoryInputs& inputs) {
  if (inputs.activation_bits == 0) return 0;
  return CodedBytes(PlanOfBlocks(inputs), inputs.shape, inputs.micro_batch * inputs.sequence_length,
                    ElementOf(inputs), inputs.activation_bits);
}

MemoryBreakdown PredictMemory(const MemoryInputs& inputs) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const ModelShape& shape = inputs.shape;

  MemoryBreakdown memory;
  // Vectors are f32 whatever the recipe.
  const int64_t gathered =
      inputs.offload_parameters ? inputs.sharded.gathered_from_host : inputs.sharded.gathered;
  const int64_t values = HostValueBytes(inputs) + (inputs.SharesParameters() ? gathered : 0);
  memory.parameters_bytes = values + PackedBytes(inputs) + Fp8State(inputs);
  if (shape.spec.family == "llama") {
    // Cosines and sines of the rotary positions.
    memory.parameters_bytes += kF32 * shape.spec.context * HeadWidth(shape.spec);
  }
  memory.gradients_bytes = kF32 * shape.stored_trained;
  memory.optimizer_bytes = inputs.optimizer.state;
  if (const int64_t sharers = inputs.Sharers(); sharers > 1) {
    const auto part_of = [](int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; };
    // Experts that ranks share are shared out among fewer.
    const bool shares_experts = shape.expert_ranks > 1;
    const int64_t experts = shares_experts ? shape.stored_trained_experts : 0;
    const int64_t expert_sharers = sharers / shape.expert_ranks;
    // Equal parts of what is stored; the rank with most has no padding in its own.
    const double padded = static_cast<double>(shape.stored_trained - experts) /
                          static_cast<double>(std::max<int64_t>(shape.trained - experts, 1));
    const OptimizerBytes& optimizer = inputs.optimizer;
    const int64_t part = part_of(optimizer.state - optimizer.state_of_experts, sharers);
    memory.optimizer_bytes = static_cast<int64_t>(padded * static_cast<double>(part)) +
                             part_of(optimizer.state_of_experts, expert_sharers);
    if (inputs.SharesParameters()) {
      memory.gradients_bytes = inputs.sharded.gradients + inputs.sharded.open_gradients;
    } else if (inputs.zero_stage > 1) {
      memory.gradients_bytes = part_of(memory.gradients_bytes - kF32 * experts, sharers) +
                               part_of(kF32 * experts, expert_sharers);
      if (!inputs.offload_optimizer) memory.gradients_bytes += inputs.open_gradients;
    }
  }
  if (inputs.parameters_in_file) {
    memory.gradients_bytes = FiledGradientsOf(inputs).host;
    if (inputs.SharesParameters()) memory.gradients_bytes += inputs.sharded.open_gradients;
  }
  if (inputs.optimizer.in_file > 0) {
    int64_t numbers = inputs.optimizer.InFileAmong(inputs.Sharers(), shape.expert_ranks);
    // Tiles then end with a unit.
    if (inputs.parameters_in_file) {
      numbers = std::min(numbers, 2 * FiledGradientsOf(inputs).numbers);
    }
    memory.optimizer_bytes += FileBufferBytes(numbers);
  }
  if (inputs.offload_optimizer && !inputs.SharesParameters()) {
    if (inputs.offload_parameters) {
      memory.parameters_bytes += StreamedPeakBytes(inputs) - PackedBytes(inputs);
    } else {
      memory.parameters_bytes += OperandBytes(inputs);
    }
    if (inputs.delayed_update) memory.gradients_bytes *= 2;
    memory.gradients_bytes += inputs.open_gradients;
  }
  const TierPeaks activations = ActivationPeaks(inputs);
  memory.activations_bytes = activations.device + activations.host;
  memory.workspace_bytes = std::max({WorkspacePeak(inputs, activations.device),
                                     inputs.optimizer.workspace, FactorWorkspace(inputs)}) +
                           KernelScratch(inputs) + HostStaging(inputs);
  if (!inputs.OnCuda()) {
    const int64_t groups = inputs.Sharers() > 1 ? inputs.ranks / inputs.Sharers() : 1;
    memory.communication_bytes =
        ReductionStagingBytes(inputs.ranks / groups) + ReductionStagingBytes(groups) +
        (shape.expert_ranks > 1 ? ReductionStagingBytes(inputs.ranks / groups / shape.expert_ranks)
                                : 0) +
        ReductionStagingBytes(shape.TensorColumns()) + ReductionStagingBytes(shape.tensor_rows);
  } else if (inputs.ranks > 1) {
    // A ring all-reduce stages about two buckets, and one of activations as much of these.
    memory.communication_bytes = 2 * inputs.bucket_bytes;
  }
  memory.communication_bytes += kF32 * shape.summands;
  if (inputs.OnCuda() && shape.tensor > 1) {
    memory.communication_bytes +=
        2 * ElementOf(inputs) * inputs.micro_batch * inputs.sequence_length * shape.spec.width;
  }
  if (inputs.OnCuda()) {
    memory.runtime_bytes = TotalBytes(OfDevice(inputs, memory)) / kUncutShare +
                           HolesBesideCodes(inputs) + HolesBesideTables(inputs);
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
  return inputs.offload_parameters ? 0 : PackedBytes(inputs) + OperandBytes(inputs);
}

StreamedBytes StreamedWeightBytes(const MemoryInputs& inputs) {
  if (!inputs.offload_parameters) return {};
  if (!inputs.SharesParameters()) return StreamedWholeBytes(inputs);
  const ShardedParameters::OverLink& link = inputs.sharded.link;
  return {.first = link.first, .forward = link.forward, .backward = link.backward};
}

int64_t FileBytes(const MemoryInputs& inputs) {
  const int64_t moments =
      kF32 * inputs.optimizer.InFileAmong(inputs.Sharers(), inputs.shape.expert_ranks);
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
  // What comes up is in the arena.
  if (inputs.offload_optimizer) return KernelScratch(inputs);
  if (!inputs.precision->fp8_blocks) return PackedBytes(inputs) + KernelScratch(inputs);
  // Codes are tensors of the arena.
  return 2 * PackedBesideFp8(inputs) + KernelScratch(inputs);
}

MemoryInputs CudaMemoryInputs(const JobSpec& job, const Plan& plan,
                              std::string_view compute_capability) {
  MemoryInputs inputs;
  inputs.shape = ShapeOf(job);
  inputs.micro_batch = plan.micro_batch;
  inputs.context = {plan.mesh.context, plan.context_method == "ulysses"};
  inputs.sequence_length = SequenceLength(job) / inputs.context.ranks;
  inputs.accumulation_steps = plan.accumulation_steps;
  inputs.ranks = GradientRanks(plan.mesh);
  inputs.zero_stage = plan.zero_stage;
  inputs.zero_shard_ranks = plan.zero_shard_ranks;
  inputs.threads = plan.threads_per_rank;
  inputs.bucket_bytes = plan.bucket_bytes;
  inputs.precision = &PrecisionOf(plan.precision);
  inputs.products = ProductKind::kStored;
  inputs.product_workspace_bytes = ProductWorkspaceBytes(compute_capability);
  inputs.fp8 = job.train.fp8;
  const int64_t experts = plan.mesh.expert;
  inputs.optimizer =
      OptimizerBytesOf(inputs.shape.spec, job, inputs.precision->products, 1, 1, experts);
  inputs.offload_optimizer = plan.offload_optimizer != "none";
  inputs.offload_activations = plan.offload_activations != "none";
  inputs.offload_parameters = plan.offload_parameters != "none";
  inputs.delayed_update = plan.delayed_update;
  if (plan.zero_stage == 2 || inputs.offload_optimizer) {
    inputs.open_gradients = OpenGradientBytes(inputs.shape.spec, plan.bucket_bytes, 1, 1, experts);
  } else if (plan.zero_stage > 2) {
    inputs.sharded =
        ShardParameters(inputs.shape.spec, *inputs.precision, inputs.Sharers(), 1, 1, experts);
  }
  inputs.activation_bits = plan.activation_bits;
  inputs.recomputed_blocks =
      std::count(plan.block_memory_policy.begin(), plan.block_memory_policy.end(), "recompute");
  // Stages of a pipeline have parts of it. A plan that the engine refuses takes no memory.
  if (plan.mesh.pipeline > 1) return inputs;
  if (auto remat = RematOf(plan, job.model.layers); remat.ok()) inputs.remat = *std::move(remat);
  return inputs;
}

std::vector<std::string> BlockPolicies(int64_t layers, int64_t recomputed, int64_t attention) {
  std::vector<std::string> policies(static_cast<size_t>(layers), "keep");
  std::fill_n(policies.begin(), recomputed, "recompute");
  std::fill_n(policies.begin() + recomputed, attention, "attention");
  return policies;
}

}  // namespace weft
