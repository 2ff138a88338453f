#include "common/model/pipeline_shape.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/model/model_counts.h"
#include "common/pipeline/cut_stages.h"
#include "common/pipeline/messages.h"

namespace weft {
namespace {

// Tables are read and their gradients written at some ten operations a byte of what else a
// processor does meanwhile.
constexpr double kEmbeddingFlopsPerNumber = 200;

int64_t RecomputedOf(const MemoryInputs& inputs, int64_t first, int64_t blocks) {
  return std::clamp<int64_t>(inputs.recomputed_blocks - first, 0, blocks);
}

/// Most that a rank keeps of its micro-batches at a time, from the forward to the last backward
/// step of each, where a chunk of one leaves `saved` bytes.
int64_t MostKept(const std::vector<PipelineStep>& steps, const std::vector<int64_t>& saved) {
  int64_t kept = 0, most = 0;
  for (const PipelineStep& step : steps) {
    const int64_t bytes = saved[static_cast<size_t>(step.chunk)];
    if (step.op == PipelineOp::kForward) most = std::max(most, kept += bytes);
    if (step.op == PipelineOp::kBackward || step.op == PipelineOp::kBackwardWeight) kept -= bytes;
  }
  return most;
}

/// Most backward passes of a rank at a time whose gradients of weights were still to come.
int64_t MostDeferred(const std::vector<PipelineStep>& steps) {
  int64_t open = 0, most = 0;
  for (const PipelineStep& step : steps) {
    if (step.op == PipelineOp::kBackwardInput) most = std::max(most, ++open);
    if (step.op == PipelineOp::kBackwardWeight) --open;
  }
  return most;
}

/// What the weights' gradients of a block need beside what it saved: gradients of the results of
/// its products, and the input of the last one.
int64_t DeferredBytes(const MemoryInputs& inputs) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t inner = (MlpInputs(model) + 1) * MlpWidth(model);
  return tokens * ElementBytes(inputs.precision->activations) *
         (2 * model.width + (model.width + 2 * KvWidth(model) + inner) / inputs.shape.tensor);
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
          &shape.packed,
          &shape.packed_in_tiles,
          &shape.packed_padding,
          &body.all,
          &body.trained,
          &body.backward,
          &head.all,
          &head.trained,
          &head.backward};
}

ModelShape OneBlock(const ModelShape& whole, bool first, bool last) {
  ModelSpec model = whole.spec;
  model.distinct_blocks = 0;  // each is its own
  ModelShape shape(model, {1, first, last}, whole.tensor, whole.sequence_parallel,
                   whole.tensor_rows, whole.expert_ranks);
  shape.masked_share = whole.masked_share;
  return shape;
}

}  // namespace

Result<std::vector<int64_t>> CutModel(const JobSpec& job, const std::vector<StageMachine>& ranks) {
  const ModelShape shape = ShapeOf(job);
  const int64_t length = SequenceLength(job);
  const auto layers = static_cast<double>(shape.spec.layers);
  const auto width = static_cast<double>(shape.spec.width);
  const double head = 6 * static_cast<double>(shape.head.all);
  const double blocks = 6 * static_cast<double>(shape.body.all) +
                        6 * layers * width * TwiceTheKeys(shape.spec, length);
  const std::vector<double> costs(static_cast<size_t>(shape.spec.layers), blocks / layers);
  const auto pipeline = static_cast<size_t>(job.resources.pipeline_parallel);
  const int64_t chunks = job.resources.pipeline_chunks;
  std::vector<StageMachine> stages(pipeline * static_cast<size_t>(chunks));
  for (size_t stage = 0; stage < stages.size() && !ranks.empty(); ++stage) {
    const StageMachine& rank = ranks[stage % pipeline];
    stages[stage] = {rank.slowness, rank.most_blocks / chunks};
  }
  return CutStages(costs, kEmbeddingFlopsPerNumber * width, head, stages);
}

ModelShape ShapeOfStage(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t stage) {
  const auto index = static_cast<size_t>(stage);
  ModelShape shape(whole.spec, {cut[index], index == 0, index + 1 == cut.size()}, whole.tensor,
                   whole.sequence_parallel, whole.tensor_rows, whole.expert_ranks);
  shape.masked_share = whole.masked_share;
  return shape;
}

ModelShape ShapeOfStages(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t ranks,
                         int64_t rank) {
  StageShape here{0, rank == 0, rank + 1 == ranks};
  for (size_t stage = static_cast<size_t>(rank); stage < cut.size();
       stage += static_cast<size_t>(ranks)) {
    here.blocks += cut[stage];
  }
  return {whole.spec,        here, whole.tensor, whole.sequence_parallel, whole.tensor_rows,
          whole.expert_ranks};
}

StageShapes::StageShapes(const ModelShape& whole)
    : inner_(OneBlock(whole, false, false)),
      first_(OneBlock(whole, true, false)),
      last_(OneBlock(whole, false, true)) {}

ModelShape StageShapes::Of(const StageShape& stage) const {
  WEFT_CHECK(!stage.first || !stage.last, "a stage of a pipeline has one end of the network");
  ModelShape shape = stage.first ? first_ : stage.last ? last_ : inner_;
  ModelShape block = inner_;
  const std::vector<int64_t*> sums = Sums(shape), of_block = Sums(block);
  for (size_t i = 0; i < sums.size(); ++i) *sums[i] += (stage.blocks - 1) * *of_block[i];
  shape.spec.layers = stage.blocks;
  return shape;
}

PipelineMemory::PipelineMemory(const StageShapes& shapes, const std::vector<int64_t>& cut,
                               const PipelineSchedule& schedule)
    : shapes_(shapes), cut_(cut), schedule_(schedule), before_{0} {
  for (const int64_t blocks : cut) before_.push_back(before_.back() + blocks);
  for (int64_t rank = 0; rank < schedule.ranks; ++rank) {
    deferred_.push_back(MostDeferred(schedule.steps[static_cast<size_t>(rank)]));
    messages_.push_back(MostMessagesUnderWay(schedule, rank));
  }
}

std::vector<MemoryBreakdown> PipelineMemory::Ranks(const MemoryInputs& inputs) const {
  const int64_t element = ElementBytes(inputs.precision->activations);
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t row = tokens * element * inputs.shape.spec.width;
  const int64_t block = BlockSavedBytes(inputs.shape, tokens, element);
  const int64_t deferred_block = DeferredBytes(inputs);
  // By blocks, those that recompute, and whether it is the first rank or the last one.
  std::map<std::tuple<int64_t, int64_t, bool, bool>, MemoryBreakdown> known;
  std::vector<MemoryBreakdown> ranks;
  std::vector<int64_t> saved(static_cast<size_t>(schedule_.chunks));
  for (int64_t rank = 0; rank < schedule_.ranks; ++rank) {
    // All that the rank has, as if it were one stage.
    StageShape here{0, rank == 0, rank + 1 == schedule_.ranks};
    int64_t recomputed = 0, of_one = 0;
    for (int64_t chunk = 0; chunk < schedule_.chunks; ++chunk) {
      const auto stage = static_cast<size_t>(schedule_.StageOf(rank, chunk));
      const int64_t replayed = RecomputedOf(inputs, before_[stage], cut_[stage]);
      here.blocks += cut_[stage];
      recomputed += replayed;
      // What one micro-batch leaves.
      saved[static_cast<size_t>(chunk)] = (cut_[stage] - replayed) * block + replayed * row;
      of_one += saved[static_cast<size_t>(chunk)];
    }
    auto [like, added] = known.try_emplace({here.blocks, recomputed, here.first, here.last});
    if (added) {
      MemoryInputs own = inputs;
      own.recomputed_blocks = recomputed;
      own.shape = shapes_.Of(here);
      const double share =
          static_cast<double>(own.shape.Updated()) / static_cast<double>(inputs.shape.Updated());
      own.optimizer.state =
          static_cast<int64_t>(share * static_cast<double>(inputs.optimizer.state));
      // All blocks have as many.
      own.optimizer.state_of_experts =
          inputs.optimizer.state_of_experts * here.blocks / inputs.shape.spec.layers;
      like->second = PredictMemory(own);
    }
    MemoryBreakdown memory = like->second;
    // One micro-batch is in PredictMemory's peak; one message is asked for ahead.
    const auto index = static_cast<size_t>(rank);
    memory.activations_bytes +=
        std::max<int64_t>(MostKept(schedule_.steps[index], saved) - of_one, 0) + row;
    if (inputs.products == ProductKind::kStored) {
      // On a CUDA device the host is ahead, and learns what has gone from what has come.
      memory.activations_bytes += messages_[index] * row;
    }
    memory.workspace_bytes += 2 * row + deferred_[index] * here.blocks * deferred_block;
    // Inputs of products that were made again: after a norm, of attention, after a norm.
    memory.activations_bytes += deferred_[index] * recomputed * 3 * row;
    ranks.push_back(memory);
  }
  return ranks;
}

std::vector<MemoryBreakdown> PredictPipelineRanks(const MemoryInputs& inputs,
                                                  const std::vector<int64_t>& cut,
                                                  const PipelineSchedule& schedule) {
  return PipelineMemory(StageShapes(inputs.shape), cut, schedule).Ranks(inputs);
}

MemoryBreakdown PredictPipelineMemory(const MemoryInputs& inputs, const std::vector<int64_t>& cut,
                                      const PipelineSchedule& schedule) {
  const std::vector<MemoryBreakdown> ranks = PredictPipelineRanks(inputs, cut, schedule);
  return *std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return TotalBytes(a) < TotalBytes(b);
  });
}

}  // namespace weft
