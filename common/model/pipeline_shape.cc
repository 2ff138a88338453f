#include "common/model/pipeline_shape.h"

#include <algorithm>
#include <numeric>

#include "common/model/model_counts.h"
#include "common/pipeline/cut_stages.h"
#include "common/pipeline/messages.h"
#include "common/pipeline/simulate.h"

namespace weft {
namespace {

// Tables are read and their gradients written at some ten operations a byte of what else a
// processor does meanwhile.
constexpr double kEmbeddingFlopsPerNumber = 200;

int64_t RecomputedOf(const MemoryInputs& inputs, int64_t first, int64_t blocks) {
  return std::clamp<int64_t>(inputs.recomputed_blocks - first, 0, blocks);
}

/// What one micro-batch leaves saved in a stage.
int64_t SavedBytes(const MemoryInputs& inputs, int64_t first, int64_t blocks) {
  const int64_t element = ElementBytes(inputs.precision->activations);
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t recomputed = RecomputedOf(inputs, first, blocks);
  return (blocks - recomputed) * BlockSavedBytes(inputs.shape, tokens, element) +
         recomputed * tokens * element * inputs.shape.spec.width;
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

}  // namespace

Result<std::vector<int64_t>> CutModel(const JobSpec& job) {
  const ModelShape shape = ShapeOf(job);
  const int64_t length = SequenceLength(job);
  const auto layers = static_cast<double>(shape.spec.layers);
  const auto width = static_cast<double>(shape.spec.width);
  const double head = 6 * static_cast<double>(shape.head.all);
  const double blocks = 6 * static_cast<double>(shape.body.all) +
                        6 * layers * width * TwiceTheKeys(shape.spec, length);
  const std::vector<double> costs(static_cast<size_t>(shape.spec.layers), blocks / layers);
  return CutStages(costs, kEmbeddingFlopsPerNumber * width, head,
                   job.resources.pipeline_parallel * job.resources.pipeline_chunks);
}

ModelShape ShapeOfStage(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t stage) {
  const auto index = static_cast<size_t>(stage);
  ModelShape shape(whole.spec, {cut[index], index == 0, index + 1 == cut.size()}, whole.tensor,
                   whole.sequence_parallel);
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
  return {whole.spec, here, whole.tensor, whole.sequence_parallel};
}

MemoryBreakdown PredictPipelineMemory(const MemoryInputs& inputs, const std::vector<int64_t>& cut,
                                      const PipelineSchedule& schedule) {
  PipelineCosts costs;
  int64_t first = 0;
  for (const int64_t blocks : cut) {
    const auto saved = static_cast<double>(SavedBytes(inputs, first, blocks));
    costs.stages.push_back({1, 1, 1, saved});
    first += blocks;
  }
  const Result<PipelineTimeline> timeline = SimulatePipeline(schedule, costs);
  WEFT_CHECK(timeline.ok(), timeline.status().message());

  const int64_t element = ElementBytes(inputs.precision->activations);
  const int64_t row =
      inputs.micro_batch * inputs.sequence_length * element * inputs.shape.spec.width;
  MemoryBreakdown fullest;
  for (int64_t rank = 0; rank < schedule.ranks; ++rank) {
    // All that the rank has, as if it were one stage.
    MemoryInputs own = inputs;
    own.recomputed_blocks = 0;
    int64_t saved = 0;
    for (int64_t chunk = 0; chunk < schedule.chunks; ++chunk) {
      const int64_t stage = schedule.StageOf(rank, chunk);
      const int64_t before = std::accumulate(cut.begin(), cut.begin() + stage, int64_t{0});
      const int64_t blocks = cut[static_cast<size_t>(stage)];
      own.recomputed_blocks += RecomputedOf(inputs, before, blocks);
      saved += SavedBytes(inputs, before, blocks);
    }
    own.shape = ShapeOfStages(inputs.shape, cut, schedule.ranks, rank);
    const double share =
        static_cast<double>(own.shape.Updated()) / static_cast<double>(inputs.shape.Updated());
    own.optimizer.state = static_cast<int64_t>(share * static_cast<double>(inputs.optimizer.state));
    MemoryBreakdown memory = PredictMemory(own);
    // One micro-batch is in PredictMemory's peak; one message is asked for ahead.
    const double peak = timeline->ranks[static_cast<size_t>(rank)].peak_activations;
    memory.activations_bytes += std::max<int64_t>(static_cast<int64_t>(peak) - saved, 0) + row;
    const int64_t deferred = MostDeferred(schedule.steps[static_cast<size_t>(rank)]);
    if (inputs.products == ProductKind::kStored) {
      // On a CUDA device the host is ahead, and learns what has gone from what has come.
      memory.activations_bytes += MostMessagesUnderWay(schedule, rank) * row;
    }
    memory.workspace_bytes += 2 * row + deferred * own.shape.spec.layers * DeferredBytes(inputs);
    // Inputs of products that were made again: after a norm, of attention, after a norm.
    memory.activations_bytes += deferred * own.recomputed_blocks * 3 * row;
    if (TotalBytes(memory) > TotalBytes(fullest)) fullest = memory;
  }
  return fullest;
}

}  // namespace weft
