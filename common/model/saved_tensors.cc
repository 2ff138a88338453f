// What a block saves for its backward pass, tensor by tensor.
#include <algorithm>
#include <optional>
#include <vector>

#include "common/model/activation_numbers.h"
#include "common/model/compressed_activations.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/pass_memory.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;

int64_t SlotBytes(const SavedTensorSlot& slot, int64_t tokens, int64_t element_bytes,
                  int64_t activation_bits) {
  if (activation_bits > 0 && slot.compressible) {
    return CodeBytes(tokens * slot.elements_per_token, activation_bits);
  }
  return tokens * slot.elements_per_token * (slot.compute_type ? element_bytes : kF32);
}

/// Whether blocks have routers that are trained.
bool TrainsRouter(const ModelSpec& model) {
  if (model.experts == 0) return false;
  const std::vector<ParameterInfo> block = BlockParameters(model, DistinctBlocks(model) - 1, 0);
  return std::any_of(block.begin(), block.end(), [](const ParameterInfo& parameter) {
    return parameter.role == ParameterRole::kRouter && !parameter.frozen;
  });
}

/// Whether the backward pass reads the result of the second norm. Experts keep copies of its rows,
/// so that of a mixture is read for the router alone, and for a graft parallel to it.
bool ReadsNorm2(const ModelShape& shape) {
  const bool reads = shape.trained_products.up;
  if (shape.spec.experts == 0) return reads;
  return TrainsRouter(shape.spec) || (reads && SavedByGrafts(shape.spec, SubLayer::kMlp) > 0);
}

/// Adds `held` bytes of a tensor to those of the inputs of products that `sum` counts apart.
void AddProductInput(SavedTensor tensor, int64_t held, bool compressed, int64_t expert_ranks,
                     BlockBytes::Kept& sum) {
  using enum SavedTensor;
  switch (tensor) {
    case kResidual2:  // Where there is a norm it keeps as much of what it reads.
      sum.norm_product_input = held;
      return;
    case kAttention:
      sum.attention_product_input = held;
      return;
    case kExpertInputs:
      sum.expert_product_input += held;
      return;
    case kExpertsBeforeActivation:
      // What is restored from quantised values and replaced by gradients is workspace.
      if (!compressed) sum.expert_product_input += held;
      return;
    case kExpertResults:
      // Gradients of experts' results take the place of these, where no other rank has them.
      if (!compressed && expert_ranks == 1) sum.expert_product_input += held;
      return;
    case kResidual1:
    case kNorm1Statistics:
    case kNorm1:
    case kQueriesKeysValues:
    case kLogSumExp:
    case kAttentionGrafts:
    case kBranch1:
    case kNorm2Statistics:
    case kNorm2:
    case kRoute:
    case kMlpBeforeActivation:
    case kMlpGrafts:
    case kBranch2:
      return;
  }
}

}  // namespace

std::vector<SavedTensorSlot> BlockSavedTensors(const ModelShape& shape) {
  using enum SavedTensor;
  const ModelSpec& model = shape.spec;
  const int64_t c = model.width, ranks = shape.TensorColumns(), rows = shape.StreamRanks();
  const bool norms = NormPositionOf(model) != "none";
  std::vector<SavedTensorSlot> slots;
  const auto add_norm = [&](SavedTensor residual, SavedTensor statistics, SavedTensor result,
                            bool read) {
    slots.push_back({residual, c / rows, true, false, norms});
    if (!norms) return;
    slots.push_back({statistics, NormStatistics(model), false});
    if (read) slots.push_back({result, c / rows, true, false, true});
  };
  // What a frozen product reads nothing reads again.
  const TrainedProducts& trained = shape.trained_products;
  add_norm(kResidual1, kNorm1Statistics, kNorm1, trained.qkv);
  slots.push_back({kQueriesKeysValues, QkvWidth(model) / ranks, true, true});
  slots.push_back({kAttention, QueryWidth(model) / ranks, true, true, true});
  slots.push_back({kLogSumExp, model.heads / ranks, false, true});
  const auto add_grafts = [&](SavedTensor tensor, SubLayer sub_layer) {
    const int64_t numbers = SavedByGrafts(model, sub_layer);
    if (numbers > 0) slots.push_back({tensor, numbers, true, false, true});
  };
  add_grafts(kAttentionGrafts, SubLayer::kAttention);
  const bool scaled = BranchScalingOf(model) != BranchScaling::kNone;
  if (scaled) slots.push_back({kBranch1, c, true});
  add_norm(kResidual2, kNorm2Statistics, kNorm2, ReadsNorm2(shape));
  if (model.experts > 0) {
    const int64_t expert_rows = shape.ExpertRows();
    slots.push_back({kRoute, RouteNumbers(model), false});
    const auto add = [&](SavedTensor tensor, int64_t elements) {
      slots.push_back({tensor, elements, true, false, true});
    };
    add(kExpertInputs, expert_rows * c);
    add(kExpertsBeforeActivation, expert_rows * 2 * MlpWidth(model) / ranks);
    add(kExpertResults, model.experts_per_token * c);
  } else {
    slots.push_back(
        {kMlpBeforeActivation, MlpInputs(model) * MlpWidth(model) / ranks, true, false, true});
  }
  add_grafts(kMlpGrafts, SubLayer::kMlp);
  if (scaled) slots.push_back({kBranch2, c, true});
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
  const PassSizes size(inputs);
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  BlockBytes bytes{
      .row = size.row,
      .gathered = size.gathered,
      .attended = size.attended,
      .qkv = size.qkv,
      .mlp_hidden = size.before + size.passed,
      .mlp_quantised = size.before,
      .log_sum_exp = kF32 * inputs.AttendedRows() * model.heads / inputs.shape.TensorColumns(),
      .post_norm = NormPositionOf(model) == "post",
      // Fixup saves the shifted stream, so that the stream itself is alive, too.
      .compressed = inputs.activation_bits > 0,
      .shifted = BranchScalingOf(model) == BranchScaling::kFixup,
      .untrained = inputs.shape.first_trained_layer};
  // Results of both branches and, in between, the sum and its norm.
  bytes.after_mlp = (bytes.post_norm                                   ? 2
                     : NormPositionOf(model) == "pre" || bytes.shifted ? 4
                                                                       : 3) *
                    size.row;
  const std::vector<SavedTensorSlot> slots = BlockSavedTensors(inputs.shape);
  const auto kept = [&](int64_t bits) {
    BlockBytes::Kept sum;
    for (const SavedTensorSlot& slot : slots) {
      const int64_t rows = slot.in_attention ? inputs.AttendedRows() : tokens;
      const int64_t held = SlotBytes(slot, rows, ElementOf(inputs), bits);
      sum.saved += held;
      if (slot.in_attention) sum.attention += held;
      if (sum.attention == 0) sum.before_qkv += held;
      AddProductInput(slot.tensor, held, bits > 0, inputs.shape.expert_ranks, sum);
    }
    return sum;
  };
  bytes.plain = kept(0);
  if (NormPositionOf(model) != "none") {
    const bool reads_input = inputs.shape.trained_products.qkv;
    bytes.keeps_input = reads_input || !bytes.post_norm;
    if (!reads_input) bytes.plain.recompute_input = size.row;
    if (!ReadsNorm2(inputs.shape)) bytes.unsaved = size.row;
  }
  bytes.unsaved += RowsAfterMlp(model) * size.row;
  for (const SavedTensorSlot& slot : slots) {
    const bool of_norm =
        slot.tensor == SavedTensor::kResidual2 || slot.tensor == SavedTensor::kNorm2Statistics;
    if (!bytes.post_norm || !of_norm) continue;
    bytes.last_norm += SlotBytes(slot, tokens, ElementOf(inputs), inputs.activation_bits);
  }
  const int64_t bits = inputs.activation_bits, width = model.width / inputs.shape.StreamRanks();
  bytes.kept = bits == 0 ? bytes.plain : kept(bits);
  if (bits > 0 && model.experts > 0) {
    // At the last expert its own values are there, and all inputs and outputs of the experts, which
    // are neither quantised nor summed yet. Then the inputs are quantised, and at last the outputs,
    // while their sum is there.
    const auto compressed_bytes = [&](int64_t of) {
      return CodeBytes(of / ElementOf(inputs), bits);
    };
    const int64_t last = size.to_experts - size.row - compressed_bytes(size.from_experts) +
                         std::max<int64_t>(2 * size.active - compressed_bytes(size.to_experts), 0);
    bytes.mlp_quantised = size.from_experts + std::max<int64_t>(last, 0);
  }
  bytes.input = bits == 0 ? size.row : CodeBytes(tokens * width, bits);
  if (bytes.plain.recompute_input > 0) bytes.kept.recompute_input = bytes.input;
  return bytes;
}

int64_t UnsavedByFirstBlock(const MemoryInputs& inputs) {
  using enum SavedTensor;
  const std::optional<SavedTensor> first = inputs.shape.first_saved;
  if (!first) return 0;
  const RematPlan plan = PlanOfBlocks(inputs);
  const auto step = std::find_if(plan.begin(), plan.end(), [&](const RematStep& each) {
    return each.end() > inputs.shape.first_trained_layer;
  });
  if (step == plan.end() || step->kind == RematStep::Kind::kSegment || step->offloaded()) return 0;
  int64_t bytes = 0;
  for (const SavedTensorSlot& slot : BlockSavedTensors(inputs.shape)) {
    // Products that are frozen do not save their input.
    const bool of_norm_1 = *first == kNorm1 && slot.tensor == kQueriesKeysValues;
    if (slot.tensor == *first || of_norm_1) return bytes;
    if (step->kind == RematStep::Kind::kAttention && slot.in_attention) continue;
    // A graft parallel to the MLP reads what the MLP does.
    if (slot.tensor == kNorm2 && *first == kMlpGrafts) continue;
    const int64_t rows =
        slot.in_attention ? inputs.AttendedRows() : inputs.micro_batch * inputs.sequence_length;
    bytes += SlotBytes(slot, rows, ElementOf(inputs), inputs.activation_bits);
  }
  return 0;
}

int64_t CompressedActivationBytes(const MemoryInputs& inputs) {
  if (inputs.activation_bits == 0) return 0;
  return CompressedBytes(PlanOfBlocks(inputs), inputs.shape,
                         inputs.micro_batch * inputs.sequence_length, ElementOf(inputs),
                         inputs.activation_bits);
}

}  // namespace weft
