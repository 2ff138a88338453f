#include "common/model/pass_memory.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/activation_numbers.h"
#include "common/model/added_network_cost.h"
#include "common/model/compressed_activations.h"
#include "common/model/model_counts.h"
#include "common/model/technique_cost.h"
#include "common/number.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;

int64_t HeadRowsOf(const MemoryInputs& inputs) {
  return HeadRows(inputs.shape, inputs.micro_batch * inputs.sequence_length,
                  inputs.sequence_length);
}

/// Rows of one expert for each token of the own, at most.
int64_t RowsOfOneExpert(const ModelShape& shape) {
  return std::min(shape.expert_ranks, shape.ExpertRows());
}

/// What the embeddings leave saved for the backward pass, if it reaches them.
int64_t SavedByEmbeddings(const MemoryInputs& inputs, const PassSizes& size) {
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

/// Results between the blocks and the logits, at most, besides the residual stream.
int64_t HeadActivations(const MemoryInputs& inputs, const PassSizes& size) {
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
  // Prediction of masked tokens frees the stream for four results; classification keeps it.
  if (head == "classification") return 3 * size.head;
  return std::max(size.head, 4 * size.head + statistics * HeadRowsOf(inputs) - size.row);
}

/// What comes before the first block: the embedding; as soon as a block saves it, it counts there.
StreamBytes StartOfBlocks(const MemoryInputs& inputs, const PassSizes& size) {
  // Without blocks, what the head keeps is the stream itself.
  StreamBytes start{.stream = inputs.shape.spec.layers > 0 ? size.row : 0};
  if (inputs.shape.embeds && inputs.shape.trains_embeddings) {
    start.saved = SavedByEmbeddings(inputs, size);
  }
  return start;
}

/// Results behind the last block, at most.
int64_t ActivationsAtEnd(const MemoryInputs& inputs, const PassSizes& size) {
  return inputs.shape.has_head ? HeadActivations(inputs, size) : size.row;
}

/// Images of a micro-batch, which nothing needs once they are cut into patches.
int64_t PixelBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  if (model.family != "vit") return 0;
  return kF32 * inputs.micro_batch * ImagePatches(model) * PatchPixels(model);
}

/// What attention to a part of the keys wants on a CUDA device (kernels/attention_part), for blocks
/// of half of the tokens that a rank has of a sequence.
int64_t PartWorkspace(const MemoryInputs& inputs) {
  if (!inputs.OnCuda() || inputs.context.ranks == 1 || inputs.context.ulysses) return 0;
  const ModelSpec& model = inputs.shape.spec;
  return inputs.sequence_length / 2 * (kF32 * model.heads + ElementOf(inputs) * QkvWidth(model)) /
         inputs.shape.TensorColumns();
}

/// What a classifier wants for a micro-batch, and of it the gradient of what it reads, which stays.
struct HeadWorkspace {
  int64_t all = 0;
  int64_t gradient = 0;
};

HeadWorkspace WorkspaceOfHead(const MemoryInputs& inputs, const PassSizes& size) {
  const ModelShape& shape = inputs.shape;
  if (!shape.has_head) return {};
  const int64_t element = ElementOf(inputs), head_rows = HeadRowsOf(inputs);
  const int64_t columns = shape.PaddedClasses();
  const int64_t chunk = std::min(LogitsChunkRows(columns, head_rows, element), head_rows);
  // Losses and, where they are counted, right answers.
  int64_t verdicts = (HeadOf(shape.spec) == "classification" ? 2 : 1) * kF32 * head_rows;
  // What tensor-parallel ranks send each other of each row of the classifier.
  if (shape.TensorColumns() > 1) verdicts += 3 * kF32 * shape.TensorColumns() * chunk;
  // With sequence parallelism, the classifier's are gathered.
  const int64_t gathered = shape.sequence_parallel ? size.head : 0;
  // A copy of its own logits, and the sum of their squares of each row.
  const int64_t copies = inputs.keeps_own_logits ? 2 : 1;
  if (inputs.keeps_own_logits) verdicts += kF32 * head_rows;
  const bool narrow = size.narrow > 0 && !shape.spec.untied_classifier;
  const int64_t gradient = narrow ? size.narrow : size.head;
  // Between the factors of an adapter, and its gradient; and what the first factor reads.
  const int64_t numbers = 2 * shape.classifier_ranks + WorkspaceOfClassifier(shape.spec, columns);
  const int64_t between = numbers * chunk * element;
  return {copies * chunk * columns * element + between + verdicts + gathered + gradient, gradient};
}

/// Gradients of the choices' weights and of the router's results.
int64_t RouterWorkspace(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  return inputs.micro_batch * inputs.sequence_length *
         (model.experts_per_token * kF32 + model.experts * ElementOf(inputs));
}

/// Bytes that activations of `bytes` bytes take in the format of the products.
int64_t InFormat(const MemoryInputs& inputs, int64_t bytes) {
  return bytes / ElementOf(inputs) * inputs.format()->element_bytes;
}

/// Copies by columns of an operand in a format, which gradients of weights read: none where these
/// are frozen, whatever is trained besides.
int64_t CopiesByColumns(const MemoryInputs& inputs) {
  return inputs.shape.trains_block_weights ? 1 : 0;
}

/// The activation of the expert that has most rows. In a format besides it operands by rows and by
/// columns of the gradient of what it makes, then in its place those of the gradient before it; and
/// by columns of what its products read.
int64_t WorkspaceOfExpert(const MemoryInputs& inputs, const PassSizes& size) {
  if (inputs.format() == nullptr) return size.active;
  const int64_t row =
      InFormat(inputs, std::max(size.row, size.gathered) * RowsOfOneExpert(inputs.shape));
  const int64_t active = InFormat(inputs, size.active), by_columns = CopiesByColumns(inputs);
  return size.active + std::max((1 + by_columns) * row + by_columns * active,
                                (1 + by_columns) * active + by_columns * row);
}

/// What products of both sub-layers want besides what dense ones do, in bytes.
struct ProductBytes {
  ProductNumbers attention, mlp;

  explicit ProductBytes(const MemoryInputs& inputs)
      : attention(Of(inputs, SubLayer::kAttention, inputs.job_workspace.attention)),
        mlp(Of(inputs, SubLayer::kMlp, inputs.job_workspace.mlp)) {}

  int64_t forward() const { return std::max(attention.forward, mlp.forward); }
  int64_t deferred() const { return attention.deferred + mlp.deferred; }

 private:
  static ProductNumbers Of(const MemoryInputs& inputs, SubLayer sub_layer,
                           const ProductNumbers& of_job) {
    const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
    const int64_t bytes = tokens * ElementOf(inputs);
    const int64_t code_bytes =
        inputs.format() == nullptr ? 0 : tokens * inputs.format()->element_bytes;
    const ProductNumbers numbers =
        WorkspaceOfProducts(inputs.shape.spec, sub_layer, inputs.shape.TensorColumns());
    const ProductNumbers grafts = WorkspaceOfGrafts(inputs.shape.spec, sub_layer);
    // Experts compute one after the other; what is deferred is of all rows.
    const bool of_mlp = sub_layer == SubLayer::kMlp;
    const int64_t rows = of_mlp ? RowsOfOneExpert(inputs.shape) : 1;
    const int64_t all_rows = of_mlp ? inputs.shape.ExpertRows() : 1;
    return {
        .forward = bytes * (rows * numbers.forward + grafts.forward + of_job.forward),
        .backward = bytes * (rows * numbers.backward + grafts.backward + of_job.backward),
        .deferred = bytes * (all_rows * numbers.deferred + grafts.deferred + of_job.deferred),
        .weights = kF32 * (numbers.weights + grafts.weights + of_job.weights),
        .in_format = code_bytes * (rows * numbers.in_format + grafts.in_format + of_job.in_format)};
  }
};

BlockWorkspace WorkspaceOfBlock(const MemoryInputs& inputs, const PassSizes& size) {
  const ModelShape& shape = inputs.shape;
  const ModelSpec& model = shape.spec;
  const int64_t element = ElementOf(inputs);
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t in = std::max(size.row, size.gathered);  // what a product behind a norm reads
  // The gradient of a changed branch is not that of the stream, until its last product is
  // differentiated.
  const bool changes = ChangesBranches(model) || inputs.job_workspace.changes_branches;
  const int64_t branch = changes ? size.row : 0;
  const int64_t beside = inputs.job_workspace.gradients * size.row;
  // Gradients around the activation and its result again; SwiGLU needs room for both gradients.
  // Gradients of results that are partitioned come from all ranks, besides that of the stream.
  const bool gated = MlpInputs(model) > 1;
  const bool stores_gradient =
      !gated || !inputs.technique_products.fuses_gates || shape.tensor_rows > 1;
  int64_t mlp_backward = size.row + size.gathered + (stores_gradient ? 2 : 1) * size.inner +
                         (gated ? size.before : 0) + branch;
  // When the first product is differentiated, what it gives has the place of what came in.
  mlp_backward = std::max(mlp_backward, size.row + in + size.before);
  if (!shape.trained_products.down) {
    // Nothing reads the activation again.
    const int64_t up = gated ? size.before : 0;
    mlp_backward = size.row + size.gathered + std::max(branch + size.inner + up, size.before + in);
  }
  // Experts have their gradients in the place of what they kept, except one activation, of all
  // tokens at most.
  if (model.experts > 0) {
    mlp_backward =
        size.row + in + branch + std::max(size.gathered, WorkspaceOfExpert(inputs, size));
  }
  if (shape.expert_ranks > 1) {
    // And for those that come from other ranks, besides those of the router.
    mlp_backward = std::max(size.row + in, size.row + WorkspaceOfExpert(inputs, size) +
                                               size.exchanged + RouterWorkspace(inputs));
  }
  // While ranks attend together, and after that, when the gradient of what it read is made.
  const int64_t attending = size.attended + PartWorkspace(inputs) +
                            ContextWorkspaceBytes(shape, inputs.context, tokens, element);
  int64_t reading = size.row + std::max(size.qkv + in, size.gathered + size.attended + branch);
  // The gradient of the merged rows is picked apart into that of the tokens and of the prefix.
  if (inputs.prefix_rows > 0) reading = std::max(reading, size.row + 2 * size.qkv);
  const ProductBytes products(inputs);
  if (inputs.format() != nullptr) {
    // The gradient in the format by rows and by columns; the input by columns is gone when its
    // gradient is made, or comes when that by rows is gone.
    const int64_t by_columns = CopiesByColumns(inputs), copies = 1 + by_columns;
    const int64_t up = size.row + in + size.before + copies * InFormat(inputs, size.before);
    if (model.experts == 0) {
      const int64_t down =
          copies * InFormat(inputs, in) + by_columns * InFormat(inputs, size.inner);
      mlp_backward = std::max(mlp_backward + std::max(down, products.mlp.in_format), up);
    }
    reading = std::max(reading + products.attention.in_format,
                       size.row + in + size.qkv + copies * InFormat(inputs, size.qkv));
  }
  if (inputs.technique_products.copies_gradients) {
    // That of the MLP's result, then that of what its activation reads.
    mlp_backward = std::max(mlp_backward + in, size.row + in + 2 * size.before);
  }
  const int64_t attention = products.attention.backward + products.attention.weights;
  return {mlp_backward + products.mlp.backward + products.mlp.weights + beside,
          reading + attention + beside, size.row + size.qkv + attending + attention + beside,
          attending};
}

/// Adds what blocks of `plan` restore from quantised values, which exists together with the
/// gradients.
void AddRestored(const MemoryInputs& inputs, const RematPlan& plan, const PassSizes& size,
                 BlockWorkspace& block) {
  const RestoredTensors restored = RestoredTensorsOf(plan);
  const int64_t alone = restored.alone * size.row, inputs_too = restored.inputs * size.row;
  const auto beside = [&](int64_t own) {
    return std::max(alone, restored.in_block ? own + inputs_too : 0);
  };
  if (inputs.shape.spec.experts == 0) {
    block.mlp += beside(size.before);
  } else {
    // What experts make, which becomes its gradient, what they read, and values of one of them.
    const int64_t compressed = size.row + RouterWorkspace(inputs) + size.from_experts +
                               size.to_experts + 3 * size.active + size.exchanged;
    block.mlp = std::max(block.mlp + alone, restored.in_block ? compressed + inputs_too : 0);
  }
  block.restored = beside(size.row);
  block.reading += block.restored;
  block.heads += beside(size.attended);
}

/// Where gradients of a block's weights are deferred, those of its products' results in their
/// format by columns.
int64_t DeferredBytesInFormat(const MemoryInputs& inputs) {
  const ProductFormat* format = inputs.format();
  if (format == nullptr || !inputs.shape.trains_block_weights) return 0;
  const ModelSpec& model = inputs.shape.spec;
  const int64_t tokens =
      RoundUp(inputs.micro_batch * inputs.sequence_length, format->size_multiple);
  const int64_t rows = inputs.shape.ExpertRows();
  const int64_t shared = QkvWidth(model) + rows * MlpInputs(model) * MlpWidth(model);
  return format->element_bytes * tokens * ((1 + rows) * model.width + shared / inputs.shape.tensor);
}

/// Gradients that those of a block's weights read where these are deferred: of its products'
/// results, and the input of the last product.
int64_t DeferredBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  if (model.experts > 0) {
    // Gradients of experts' results and activations are where these were saved, except those that
    // come from other ranks.
    const int64_t rows = inputs.shape.ExpertRows(), c = model.width;
    const int64_t received = inputs.shape.expert_ranks > 1 ? rows * c : 0;
    return DeferredBytesInFormat(inputs) + ProductBytes(inputs).deferred() +
           tokens * ElementOf(inputs) *
               (c + (QkvWidth(model) + rows * MlpWidth(model)) / inputs.shape.tensor +
                model.experts + received);
  }
  const int64_t before = MlpInputs(model) * MlpWidth(model), inner = before + MlpWidth(model);
  const int64_t copies =
      inputs.technique_products.copies_gradients ? model.width + before / inputs.shape.tensor : 0;
  return DeferredBytesInFormat(inputs) + ProductBytes(inputs).deferred() +
         tokens * ElementOf(inputs) *
             (2 * model.width + (QkvWidth(model) + inner) / inputs.shape.tensor + copies);
}

/// Gradients of a row around the first norm of a block in the backward pass, where those of results
/// wait: of what the product behind it reads, and of what it reads itself.
int64_t GradientsAroundNorm(const ModelSpec& model) {
  if (NormPositionOf(model) == "pre") return 2;
  return BranchScalingOf(model) == BranchScaling::kFixup ? 3 : 1;
}

/// Operands that are widened for one product at a time: of the largest one.
int64_t WidenedBytes(const MemoryInputs& inputs) {
  if (!WidensOperands(inputs.products)) return 0;
  const ModelSpec& model = inputs.shape.spec;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t head_rows = HeadRowsOf(inputs), columns = inputs.shape.PaddedClasses();
  const int64_t chunk = std::min(LogitsChunkRows(columns, head_rows, ElementOf(inputs)), head_rows);
  const int64_t widest =
      std::max({MlpInputs(model) * MlpWidth(model), 3 * model.width, QkvWidth(model)});
  const int64_t input = std::max(model.width, QueryWidth(model));
  const int64_t other = inputs.products == ProductKind::kWidenedUnpacked ? 0 : input;
  return kF32 * std::max(chunk * (columns + other), tokens * (widest + other));
}

/// What the backward pass of a block wants at its MLP, where gradients of weights are deferred.
int64_t DeferredMlpWorkspace(const MemoryInputs& inputs, const PassSizes& size,
                             const BlockWorkspace& block) {
  const ModelShape& shape = inputs.shape;
  if (shape.spec.experts == 0) return block.mlp;
  // Experts' inputs have gradients in places of their own, besides those of the stream and of what
  // the router reads; attention has none yet.
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t whole = std::max(size.row, size.gathered);
  const int64_t bytes = DeferredBytes(inputs) - ProductBytes(inputs).attention.deferred - whole -
                        size.qkv + whole * shape.ExpertRows() + size.row +
                        kF32 * tokens * shape.spec.experts_per_token;
  if (inputs.format() == nullptr) return bytes + whole;
  // The gradient for what the router reads, or before it that of the last expert by rows.
  const int64_t by_rows = size.active + InFormat(inputs, whole * RowsOfOneExpert(shape));
  return bytes - CopiesByColumns(inputs) * InFormat(inputs, whole + size.qkv) +
         std::max(whole, by_rows);
}

}  // namespace

PassSizes::PassSizes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t element = tokens * ElementOf(inputs);
  const int64_t rows = inputs.shape.tensor_rows, columns = inputs.shape.TensorColumns();
  const int64_t whole = element * model.width / rows;
  gathered = inputs.shape.sequence_parallel ? whole : 0;
  row = inputs.shape.sequence_parallel ? whole / columns : whole;
  const int64_t attended_element = inputs.AttendedRows() * ElementOf(inputs);
  attended = attended_element * QueryWidth(model) / columns;
  qkv = attended_element * QkvWidth(model) / columns;
  inner = element * MlpWidth(model) / columns;
  const int64_t expert_rows = inputs.shape.ExpertRows();
  before = MlpInputs(model) * inner * expert_rows;
  if (model.experts > 0) {
    // What experts read and what the own tokens get of them, and where it goes.
    to_experts = whole * expert_rows;
    from_experts = whole * model.experts_per_token;
    passed = to_experts + from_experts + kF32 * tokens * RouteNumbers(model);
    active = inner * RowsOfOneExpert(inputs.shape);
  }
  if (inputs.shape.expert_ranks > 1) exchanged = whole * expert_rows;
  narrow = element * model.embedding_width;
  head = HeadRowsOf(inputs) * ElementOf(inputs) * model.width / rows;
}

RematPlan PlanOfBlocks(const MemoryInputs& inputs) {
  if (!inputs.remat.empty()) return inputs.remat;
  const int64_t layers = inputs.shape.spec.layers;
  RematPlan plan =
      RematOfPolicies(BlockPolicies(layers, inputs.recomputed_blocks, inputs.attention_blocks),
                      layers, inputs.recompute_segment);
  return inputs.offload_activations ? AllOnHost(std::move(plan)) : std::move(plan);
}

TierPeaks ActivationPeaks(const MemoryInputs& inputs) {
  const PassSizes size(inputs);
  StreamBytes start = StartOfBlocks(inputs, size);
  const int64_t embedding = start.saved;
  start.saved -= UnsavedByFirstBlock(inputs);
  // Those of a bert or vit are sums of several tables.
  const int64_t tables =
      (HeadOf(inputs.shape.spec) == "causal_lm" ? 1 : 4) * size.row + size.gathered;
  const int64_t last = ActivationsAtEnd(inputs, size);
  const BlockBytes block = BlockBytesOf(inputs);
  TierPeaks peaks;
  if (inputs.offload_activations || !inputs.remat.empty()) {
    peaks = PeakOfBlocks(PlanOfBlocks(inputs), block, start, last);
  } else {
    peaks.device =
        PeakOfFirstBlocks(inputs.shape.spec.layers, inputs.recomputed_blocks,
                          inputs.attention_blocks, inputs.recompute_segment, block, start, last);
  }
  peaks.device = std::max(peaks.device, embedding + tables);
  return peaks;
}

int64_t WorkspacePeak(const MemoryInputs& inputs, int64_t activations) {
  const PassSizes size(inputs);
  const AddedNetworkBytes added = AddedNetworkBytesOf(inputs);
  const int64_t batches = inputs.accumulation_steps * BatchBytes(inputs) +
                          (inputs.accumulation_steps - 1) * PixelBytes(inputs);
  BlockWorkspace block = WorkspaceOfBlock(inputs, size);
  if (inputs.activation_bits > 0) AddRestored(inputs, PlanOfBlocks(inputs), size, block);
  // The backward pass does not reach these blocks.
  if (inputs.shape.first_trained_layer == inputs.shape.spec.layers) block = {};
  const int64_t peak = std::max(WorkspaceOfHead(inputs, size).all + added.hidden, block.most()) +
                       WidenedBytes(inputs);
  const int64_t evaluation = std::max(EvaluationBytes(inputs) + added.hidden, added.pass);
  return batches + std::max({peak, PixelBytes(inputs), evaluation - activations});
}

StagePassMemory::StagePassMemory(const MemoryInputs& inputs, bool defers)
    : defers_(defers),
      size_(inputs),
      block_(BlockBytesOf(inputs)),
      embedded_(SavedByEmbeddings(inputs, size_)),
      last_(HeadActivations(inputs, size_)),
      widened_(WidenedBytes(inputs)) {
  const HeadWorkspace head = WorkspaceOfHead(inputs, size_);
  head_ = head.all;
  head_gradient_ = head.gradient;
  narrow_head_ = size_.narrow > 0 && !inputs.shape.spec.untied_classifier ? size_.row : 0;
  workspace_ = WorkspaceOfBlock(inputs, size_);
  if (!defers) return;
  deferred_ = DeferredBytes(inputs);
  const bool compressed_experts = inputs.activation_bits > 0 && inputs.shape.spec.experts > 0;
  if (compressed_experts) {
    // Gradients of experts' results and of their values are where these were restored.
    compressed_deferred_ = size_.before + (inputs.shape.expert_ranks == 1 ? size_.from_experts : 0);
  }
  // In the midst of the first block, or before it. Where gradients of results come from other
  // ranks, that of the stream is one more.
  const bool gathers = size_.gathered > 0;
  const int64_t around_norm =
      (GradientsAroundNorm(inputs.shape.spec) - (gathers ? 1 : 0)) * size_.row + size_.gathered;
  // When the product behind it has made its gradient, that of its result in the format by rows.
  const int64_t reading = inputs.format() != nullptr ? size_.row + InFormat(inputs, size_.qkv) : 0;
  backward_workspace_ =
      std::max(DeferredMlpWorkspace(inputs, size_, workspace_) - deferred_,
               (gathers ? size_.row : 0) + std::max({around_norm, workspace_.attending, reading}));
}

BlockBytes StagePassMemory::BlockOf(const StageKind& stage) const {
  BlockBytes block = block_;
  block.untrained = stage.untrained;
  return block;
}

StreamBytes StagePassMemory::StartOf(const StageKind& stage) const {
  StreamBytes start{.stream = size_.row};
  if (stage.first && stage.untrained == 0) start.saved = embedded_;
  return start;
}

StageMemory StagePassMemory::Of(const MemoryInputs& inputs, const StageKind& stage) const {
  RematPlan plan;
  if (inputs.offload_activations || inputs.activation_bits > 0) {
    plan = RematOfPolicies(BlockPolicies(stage.blocks, stage.recomputed, stage.attention),
                           stage.blocks, stage.segment);
  }
  if (inputs.offload_activations) return Of(inputs, stage, AllOnHost(std::move(plan)));
  StageMemory memory;
  memory.activations =
      PassesOfFirstBlocks(stage.blocks, stage.recomputed, stage.attention, stage.segment,
                          BlockOf(stage), StartOf(stage), EndOf(stage), defers_);
  AddRest(inputs, stage, plan, memory);
  return memory;
}

StageMemory StagePassMemory::Of(const MemoryInputs& inputs, const StageKind& stage,
                                const RematPlan& plan) const {
  const TierPasses passes = PassesOf(plan, BlockOf(stage), StartOf(stage), EndOf(stage), defers_);
  StageMemory memory;
  memory.activations = passes.device;
  memory.offloaded_activations = passes.host;
  AddRest(inputs, stage, plan, memory);
  return memory;
}

void StagePassMemory::AddRest(const MemoryInputs& inputs, const StageKind& stage,
                              const RematPlan& plan, StageMemory& memory) const {
  BlockWorkspace backward = workspace_;
  if (inputs.activation_bits > 0) AddRestored(inputs, plan, size_, backward);
  PassBytes &saved = memory.activations, &workspace = memory.workspace;
  const bool experts = inputs.shape.spec.experts > 0;
  const int64_t active = experts ? size_.active : size_.inner;
  const int64_t in_format = inputs.format() != nullptr ? InFormat(inputs, active) : 0;
  workspace.forward = active + in_format + (experts ? size_.exchanged : 0) + widened_ +
                      ProductBytes(inputs).forward();
  if (stage.last) {
    // All that is there at the end but what the classifier reads.
    saved.kept += std::max<int64_t>(last_ - (narrow_head_ > 0 ? size_.narrow : size_.row), 0);
    saved.backward = std::max(saved.backward, saved.kept);
    workspace.kept = head_gradient_;
    workspace.forward = std::max(workspace.forward, head_ + widened_);
  }
  if (stage.untrained < stage.blocks) {
    workspace.backward = backward.most() + widened_;
  }
  if (defers_) {
    // What experts make is restored for its gradient, which others get.
    const int64_t made =
        compressed_deferred_ > 0 && inputs.shape.expert_ranks > 1 ? size_.from_experts : 0;
    DeferWeightGradientsOf(inputs, stage, std::max(backward.restored, made), memory);
  }
}

// What stays until gradients of weights are made, and the backward pass during that.
void StagePassMemory::DeferWeightGradientsOf(const MemoryInputs& inputs, const StageKind& stage,
                                             int64_t restored, StageMemory& memory) const {
  PassBytes &saved = memory.activations, &workspace = memory.workspace;
  const int64_t trained = stage.blocks - stage.untrained;
  // What attention reads is made again once, from quantised values, for both.
  const int64_t read_again = inputs.activation_bits > 0 ? stage.attention * size_.row : 0;
  const int64_t plain =
      stage.segment == 1 ? std::max<int64_t>(stage.recomputed - stage.untrained, 0) : 0;
  workspace.waiting = trained * deferred_ + (trained - plain) * compressed_deferred_ + read_again;
  if (stage.last && narrow_head_ > 0) {
    // The projection of a factorised embedding.
    saved.waiting += narrow_head_;
    saved.backward = std::max(saved.kept, saved.backward + narrow_head_);
    workspace.waiting += size_.narrow;
  }
  if (trained > 0) {
    workspace.backward =
        std::max(workspace.backward, workspace.waiting + backward_workspace_ + restored + widened_);
  }
  if (stage.first && stage.untrained == 0 && size_.narrow > 0) {
    // The same, which reads the last gradient that was made.
    saved.waiting += size_.narrow;
    workspace.waiting += size_.row;
  }
}

int64_t BatchBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const std::string head = HeadOf(model);
  const int64_t sequences = inputs.micro_batch;
  const int64_t tokens = sequences * inputs.sequence_length;
  const int64_t starts = sequences + 1;
  // Position and row of each token, labels.
  if (model.family == "vit") return kF32 * (2 * tokens + starts + sequences);
  // Routers ask for the lengths of padded rows.
  const int64_t lengths = model.experts > 0 ? sequences : 0;
  // Token, position and target or type.
  if (head != "masked_lm") return kF32 * (3 * tokens + starts + sequences + lengths);
  return kF32 * (4 * tokens + starts + 2 * HeadRowsOf(inputs));
}

int64_t EvaluationBytes(const MemoryInputs& inputs) {
  if (inputs.evaluated) {
    MemoryInputs whole = inputs;
    whole.shape.spec = *inputs.evaluated;
    whole.evaluated.reset();
    whole.job_workspace = {};  // of steps alone: all units are multiplied by dense weights
    // Steps count those of their own products, which are narrower.
    return EvaluationBytes(whole) + WidenedBytes(whole);
  }
  const PassSizes size(inputs);
  // All results of a block count as workspace.
  const int64_t inner = inputs.shape.spec.experts > 0 ? size.active : size.inner;
  return 4 * size.row + size.gathered + std::max(size.row, size.attended) + size.qkv + inner +
         size.before + size.passed + size.exchanged + ProductBytes(inputs).forward();
}

}  // namespace weft
