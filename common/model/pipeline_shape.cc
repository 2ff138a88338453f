#include "common/model/pipeline_shape.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/model/model_counts.h"
#include "common/pipeline/cut_stages.h"

namespace weft {
namespace {

// Tables are read and their gradients written at some ten operations a byte of what else a
// processor does meanwhile.
constexpr double kEmbeddingFlopsPerNumber = 200;

constexpr int64_t kF32 = 4;

/// A stage of `blocks` blocks that begins with block `before` of all: the first ones of these
/// recompute, the next ones their attention.
StageKind KindOf(const MemoryInputs& inputs, int64_t before, int64_t blocks, bool first,
                 bool last) {
  StageKind kind{.blocks = blocks, .first = first, .last = last};
  kind.recomputed = std::clamp<int64_t>(inputs.recomputed_blocks - before, 0, blocks);
  kind.attention =
      std::clamp<int64_t>(inputs.recomputed_blocks + inputs.attention_blocks - before, 0, blocks) -
      kind.recomputed;
  kind.segment =
      std::clamp<int64_t>(inputs.recompute_segment, 1, std::max<int64_t>(kind.recomputed, 1));
  kind.untrained = std::clamp<int64_t>(inputs.shape.first_trained_layer - before, 0, blocks);
  return kind;
}

/// The numbers of a shape that add up over its blocks and ends.
std::vector<int64_t*> Sums(ModelShape& shape) {
  ParameterCounts& c = shape.counts;
  ParameterUses &body = shape.body, &head = shape.head;
  return {&c.token_embedding,
          &c.position_embedding,
          &c.embedding_projection,
          &c.attention,
          &c.mlp,
          &c.norms,
          &c.classifier,
          &c.branch_scales,
          &shape.trained,
          &shape.stored,
          &shape.stored_trained,
          &shape.stored_trained_experts,
          &shape.stored_matrices,
          &shape.stored_trained_matrices,
          &shape.only_multiplied,
          &shape.partial_gradients,
          &shape.packed,
          &shape.packed_in_tiles,
          &shape.packed_padding.f32,
          &shape.packed_padding.f32_else,
          &shape.packed_padding.bf16,
          &shape.packed_padding.bf16_else,
          &shape.frozen.vectors,
          &shape.frozen.looked_up,
          &shape.frozen.matrices,
          &shape.frozen.in_tiles,
          &shape.frozen.of_first,
          &shape.frozen_adapters,
          &shape.quantized,
          &shape.stacked_with_derived,
          &shape.derived,
          &shape.sources,
          &body.all,
          &body.trained,
          &body.backward,
          &head.all,
          &head.trained,
          &head.backward};
}

std::vector<int64_t> NumbersOf(ModelShape shape) {
  std::vector<int64_t> numbers;
  for (const int64_t* number : Sums(shape)) numbers.push_back(*number);
  return numbers;
}

/// Lists the blocks of all stages of a rank.
std::vector<int64_t> BlocksOfStages(const std::vector<int64_t>& cut, int64_t ranks, int64_t rank) {
  std::vector<int64_t> which;
  int64_t first = 0;
  for (int64_t stage = 0; stage < std::ssize(cut); ++stage) {
    const int64_t blocks = cut[static_cast<size_t>(stage)];
    for (int64_t i = 0; i < blocks && stage % ranks == rank; ++i) which.push_back(first + i);
    first += blocks;
  }
  return which;
}

/// FormatBlocks of rank `rank` of `ranks`, in a network of `layers`. `before`: blocks before each
/// stage, and all of them.
FormatBlocks FormatBlocksAmong(FormatBlocks of, const std::vector<int64_t>& before, int64_t ranks,
                               int64_t rank, int64_t layers) {
  const int64_t first = of.dense_first, last = layers - of.dense_last;
  of.dense_first = of.dense_last = 0;
  for (auto stage = static_cast<size_t>(rank); stage + 1 < before.size();
       stage += static_cast<size_t>(ranks)) {
    const int64_t begin = before[stage], end = before[stage + 1];
    of.dense_first += std::max<int64_t>(std::min(end, first) - begin, 0);
    of.dense_last += std::max<int64_t>(end - std::max(begin, last), 0);
  }
  return of;
}

ModelShape OneBlock(const ModelShape& whole, bool first, bool last) {
  ModelSpec model = whole.spec;
  model.distinct_blocks = 0;  // each is its own
  model.freeze = {};
  ModelShape shape(model, {1, first, last}, whole.tensor, whole.sequence_parallel,
                   whole.tensor_rows, whole.expert_ranks);
  shape.masked_share = whole.masked_share;
  shape.context_ranks = whole.context_ranks;
  return shape;
}

}  // namespace

Result<std::vector<int64_t>> CutModel(const JobSpec& job, const std::vector<StageMachine>& ranks) {
  const ModelShape shape = ShapeOf(job);
  const int64_t length = SequenceLength(job);
  const auto layers = static_cast<double>(shape.spec.layers);
  const auto width = static_cast<double>(shape.spec.width);
  const double head = 6 * static_cast<double>(shape.head.all);
  const double attention =
      static_cast<double>(QueryWidth(shape.spec)) * TwiceTheKeys(shape.spec, length);
  const double blocks = 6 * static_cast<double>(shape.body.all) + 6 * layers * attention;
  std::vector<double> costs(static_cast<size_t>(shape.spec.layers), blocks / layers);
  for (int64_t i = 0; i < shape.spec.layers && FreezesAny(shape.spec); ++i) {
    const ModelShape block(shape.spec, {1, false, false, {i}}, 1, false);
    const ParameterUses& body = block.body;
    const double passes = block.first_trained_layer == 0 ? 6 : 2;
    costs[static_cast<size_t>(i)] =
        2 * static_cast<double>(body.all + body.trained + body.backward) + passes * attention;
  }
  const auto pipeline = static_cast<size_t>(job.resources.pipeline_parallel);
  const int64_t chunks = job.resources.pipeline_chunks;
  std::vector<StageMachine> stages(pipeline * static_cast<size_t>(chunks));
  for (size_t stage = 0; stage < stages.size() && !ranks.empty(); ++stage) {
    const StageMachine& rank = ranks[stage % pipeline];
    stages[stage] = {rank.slowness, rank.most_blocks / chunks};
  }
  return CutStages(costs, kEmbeddingFlopsPerNumber * width, head, stages);
}

int64_t FirstTrainedStage(const ModelSpec& model, const std::vector<int64_t>& cut) {
  const int64_t block = FirstTrainedBlock(model);
  int64_t stage = 0, end = 0;
  while (stage + 1 < std::ssize(cut) && (end += cut[static_cast<size_t>(stage)]) <= block) ++stage;
  return stage;
}

ModelShape ShapeOfStage(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t stage) {
  return ShapeOfStages(whole, cut, std::ssize(cut), stage);
}

ModelShape ShapeOfStages(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t ranks,
                         int64_t rank) {
  std::vector<int64_t> which = BlocksOfStages(cut, ranks, rank);
  StageShape here{std::ssize(which), rank == 0, rank + 1 == ranks};
  if (FreezesAny(whole.spec)) here.which = std::move(which);
  ModelShape shape(whole.spec, here, whole.tensor, whole.sequence_parallel, whole.tensor_rows,
                   whole.expert_ranks);
  shape.masked_share = whole.masked_share;
  shape.context_ranks = whole.context_ranks;
  return shape;
}

StageShapes::StageShapes(const ModelShape& whole)
    : whole_(whole),
      alike_(!FreezesAny(whole.spec)),
      inner_(OneBlock(whole, false, false)),
      first_(OneBlock(whole, true, false)),
      last_(OneBlock(whole, false, true)),
      block_numbers_(NumbersOf(inner_)) {}

ModelShape StageShapes::Of(const StageShape& stage) const {
  WEFT_CHECK(!stage.first || !stage.last, "a stage of a pipeline has one end of the network");
  if (!alike()) {
    ModelShape own(whole_.spec, stage, whole_.tensor, whole_.sequence_parallel, whole_.tensor_rows,
                   whole_.expert_ranks);
    own.masked_share = whole_.masked_share;
    own.context_ranks = whole_.context_ranks;
    return own;
  }
  ModelShape shape = stage.first ? first_ : stage.last ? last_ : inner_;
  const std::vector<int64_t*> sums = Sums(shape);
  for (size_t i = 0; i < sums.size(); ++i) *sums[i] += (stage.blocks - 1) * block_numbers_[i];
  shape.spec.layers = stage.blocks;
  return shape;
}

PipelineMemory::PipelineMemory(const StageShapes& shapes, const std::vector<int64_t>& cut,
                               const InFlightActivations& in_flight)
    : shapes_(shapes),
      cut_(cut),
      in_flight_(in_flight),
      before_{0},
      saved_(static_cast<size_t>(in_flight.chunks())),
      workspace_(saved_),
      offloaded_(saved_) {
  for (const int64_t blocks : cut) before_.push_back(before_.back() + blocks);
}

std::vector<MemoryBreakdown> PipelineMemory::Ranks(const MemoryInputs& inputs, bool with_host) {
  std::vector<MemoryBreakdown> ranks;
  for (int64_t rank = 0; rank < in_flight_.ranks(); ++rank) {
    ranks.push_back(Rank(inputs, rank, with_host));
  }
  return ranks;
}

// With stages of the same kinds a rank has no more than one before it that has no less in flight.
MemoryBreakdown PipelineMemory::Fullest(const MemoryInputs& inputs, bool with_host) {
  const FormatBlocks& format = inputs.format_blocks;
  const bool alike =
      shapes_.alike() && inputs.remat.empty() && format.dense_first + format.dense_last == 0;
  std::map<std::vector<StageKind>, int64_t> seen;  // and the last rank that had these
  MemoryBreakdown fullest;
  for (int64_t rank = 0; rank < in_flight_.ranks(); ++rank) {
    if (alike) {
      const auto [found, added] = seen.try_emplace(KindsOf(inputs, rank), rank);
      if (!added && in_flight_.FallsFrom(rank) <= found->second) continue;
      found->second = rank;
    }
    const MemoryBreakdown memory = Rank(inputs, rank, with_host);
    if (TotalBytes(memory) > TotalBytes(fullest)) fullest = memory;
  }
  return fullest;
}

PipelineMemory::OfAll::OfAll(const MemoryInputs& inputs, bool defers)
    : passes(inputs, defers), batch(BatchBytes(inputs)) {
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t sequence_ranks = inputs.shape.sequence_parallel ? inputs.shape.tensor : 1;
  message = tokens / sequence_ranks * ElementBytes(inputs.precision->activations) *
            inputs.shape.spec.width;
  evaluation = EvaluationBytes(inputs) + 4 * message + batch;
}

StageMemory PipelineMemory::OfStage(const MemoryInputs& inputs, const StageKind& kind,
                                    size_t stage) {
  if (!inputs.remat.empty()) {
    const Result<RematPlan> plan = StageOf(inputs.remat, before_[stage], cut_[stage]);
    WEFT_CHECK(plan.ok(), plan.status().message());
    return of_all_->passes.Of(inputs, kind, *plan);
  }
  const auto [found, added] = stages_.try_emplace(kind);
  if (added) found->second = of_all_->passes.Of(inputs, kind);
  return found->second;
}

const PipelineMemory::Rest& PipelineMemory::RestOf(const MemoryInputs& inputs, int64_t rank,
                                                   StageKind all, bool with_host) {
  // Next to quantised values there are holes.
  if (inputs.activation_bits == 0) all.recomputed = all.attention = 0, all.segment = 1;
  std::vector<int64_t> which;
  if (!shapes_.alike()) which = BlocksOfStages(cut_, in_flight_.ranks(), rank);
  const FormatBlocks format = FormatBlocksAmong(inputs.format_blocks, before_, in_flight_.ranks(),
                                                rank, inputs.shape.spec.layers);
  const std::array<int64_t, 2> dense = {format.dense_first, format.dense_last};
  const auto [found, added] = rests_.try_emplace({all, with_host, which, dense});
  Rest& rest = found->second;
  if (!added) return rest;
  MemoryInputs own = inputs;
  own.recomputed_blocks = all.recomputed;
  own.attention_blocks = all.attention;
  own.recompute_segment = all.segment;
  own.remat.clear();
  own.format_blocks = format;
  own.shape = shapes_.Of({all.blocks, all.first, all.last, std::move(which)});
  const double share = static_cast<double>(own.shape.Updated()) /
                       static_cast<double>(std::max<int64_t>(inputs.shape.Updated(), 1));
  const auto of_share = [share](int64_t whole) {
    return static_cast<int64_t>(share * static_cast<double>(whole));
  };
  // What is replicated is of the matrices of blocks alone, embeddings have none of it.
  own.optimizer.replicated =
      inputs.optimizer.replicated * all.blocks / std::max<int64_t>(inputs.shape.spec.layers, 1);
  own.optimizer.state =
      of_share(inputs.optimizer.state - inputs.optimizer.replicated) + own.optimizer.replicated;
  own.optimizer.in_file = of_share(inputs.optimizer.in_file);
  own.optimizer.auxiliary = inputs.optimizer.auxiliary.OfStage(
      all.blocks, std::max<int64_t>(inputs.shape.spec.layers, 1));
  // All micro-batches add to gradients on the device.
  if (inputs.offload_optimizer) own.open_gradients.bytes = kF32 * own.shape.stored_trained;
  if (inputs.optimizer.state_of_experts > 0) {
    own.optimizer.state_of_experts =
        static_cast<int64_t>(static_cast<double>(inputs.optimizer.state_of_experts) *
                             static_cast<double>(own.shape.stored_trained_experts) /
                             static_cast<double>(inputs.shape.stored_trained_experts));
  }
  rest.memory = PredictMemory(own);
  rest.update = UpdateWorkspaceBytes(own);
  rest.scratch = ScratchBytes(own);
  if (with_host) return rest;
  rest.scratch -= rest.memory.workspace_bytes;
  rest.memory = PredictDeviceTier(own);
  rest.scratch += rest.memory.workspace_bytes;
  return rest;
}

std::vector<StageKind> PipelineMemory::KindsOf(const MemoryInputs& inputs, int64_t rank) const {
  const int64_t count = in_flight_.ranks(), stages = count * in_flight_.chunks();
  std::vector<StageKind> kinds;
  for (int64_t index = rank; index < stages; index += count) {
    const auto stage = static_cast<size_t>(index);
    kinds.push_back(KindOf(inputs, before_[stage], cut_[stage], index == 0, index + 1 == stages));
  }
  return kinds;
}

MemoryBreakdown PipelineMemory::Rank(const MemoryInputs& inputs, int64_t rank, bool with_host) {
  const int64_t count = in_flight_.ranks();
  if (!of_all_) of_all_.emplace(inputs, in_flight_.defers());
  const int64_t message = of_all_->message, batch = of_all_->batch;
  // All that the rank has, as if it were one stage.
  StageKind all{.first = rank == 0, .last = rank + 1 == count};
  const std::vector<StageKind> kinds = KindsOf(inputs, rank);
  for (size_t c = 0; c < kinds.size(); ++c) {
    const StageKind& own = kinds[c];
    const size_t stage = c * static_cast<size_t>(count) + static_cast<size_t>(rank);
    all.blocks += own.blocks;
    all.recomputed += own.recomputed;
    all.attention += own.attention;
    all.untrained += own.untrained;
    all.segment = std::max(all.segment, own.segment);
    const StageMemory memory = OfStage(inputs, own, stage);
    saved_[c] = memory.activations;
    workspace_[c] = memory.workspace;
    const int64_t host = memory.offloaded_activations;
    offloaded_[c] = {.kept = host, .forward = host, .backward = host};
  }
  const Rest& rest = RestOf(inputs, rank, all, with_host);
  MemoryBreakdown memory = rest.memory;
  // Where no gradients come back nothing is kept, one message is asked for, and three may be on
  // their way to the next rank.
  const bool frozen = all.untrained == all.blocks && !all.last;
  const int64_t on_device = frozen ? saved_.front().forward + 4 * message
                                   : in_flight_.Most(rank, saved_, {.output = message});
  const int64_t passes =
      frozen ? workspace_.front().forward + inputs.accumulation_steps * batch
             : in_flight_.Most(rank, workspace_, {.gradient = message, .batch = batch});
  memory.workspace_bytes =
      std::max({passes, of_all_->evaluation - on_device, rest.update}) + rest.scratch;
  memory.activations_bytes = on_device;
  if (with_host && inputs.offload_activations) {
    memory.activations_bytes += in_flight_.Most(rank, offloaded_, {});
  }
  // Next to quantised values there are holes (PredictMemory).
  if (inputs.OnCuda() && inputs.activation_bits > 0) {
    memory.runtime_bytes += std::max<int64_t>(on_device - saved_.front().backward, 0) / 6;
  }
  return memory;
}

std::vector<MemoryBreakdown> PredictPipelineRanks(const MemoryInputs& inputs,
                                                  const std::vector<int64_t>& cut,
                                                  const PipelineSchedule& schedule) {
  return PipelineMemory(StageShapes(inputs.shape), cut, InFlightActivations(schedule))
      .Ranks(inputs);
}

MemoryBreakdown PredictPipelineMemory(const MemoryInputs& inputs, const std::vector<int64_t>& cut,
                                      const PipelineSchedule& schedule) {
  return PipelineMemory(StageShapes(inputs.shape), cut, InFlightActivations(schedule))
      .Fullest(inputs);
}

}  // namespace weft
