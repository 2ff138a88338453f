#include "common/model/pipeline_shape.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/model/model_counts.h"
#include "common/model/parameter_list.h"
#include "common/pipeline/cut_stages.h"
#include "common/pipeline/messages.h"

namespace weft {
namespace {

// Tables are read and their gradients written at some ten operations a byte of what else a
// processor does meanwhile.
constexpr double kEmbeddingFlopsPerNumber = 200;

constexpr int64_t kF32 = 4;

/// Of one micro-batch's `blocks` blocks of a stage the first ones recompute, the next ones their
/// attention. Of all of them the first `untrained` have no backward pass, and keep nothing.
struct StagePolicy {
  int64_t blocks = 0;
  int64_t recomputed = 0;
  int64_t attention = 0;
  int64_t untrained = 0;

  StagePolicy(const MemoryInputs& inputs, int64_t first, int64_t count)
      : blocks(count),
        recomputed(std::clamp<int64_t>(inputs.recomputed_blocks - first, 0, blocks)),
        attention(std::clamp<int64_t>(
            inputs.recomputed_blocks + inputs.attention_blocks - first - recomputed, 0,
            blocks - recomputed)),
        untrained(std::clamp<int64_t>(inputs.shape.first_trained_layer - first, 0, blocks)) {}

  /// What they keep.
  int64_t Saved(const BlockBytes& block, int64_t segment) const {
    const int64_t plain = blocks - std::max(recomputed, untrained);
    const int64_t attentions =
        std::max<int64_t>(attention - std::max<int64_t>(untrained - recomputed, 0), 0);
    const int64_t segments =
        std::max<int64_t>((recomputed + segment - 1) / segment - untrained / segment, 0);
    return plain * block.kept.saved - attentions * block.kept.attention + segments * block.input;
  }
  /// Of it that of the last one, or of the segment that it is in.
  int64_t SavedLast(const BlockBytes& block) const {
    if (untrained == blocks) return 0;
    if (recomputed == blocks) return block.input;
    return block.kept.saved - (recomputed + attention == blocks ? block.kept.attention : 0);
  }
};

/// Micro-batches of each chunk that a rank keeps, at times of which one is that of most bytes
/// whatever a chunk leaves: after a forward step that a step of another kind follows.
std::vector<int32_t> KeptAtPeaks(const std::vector<PipelineStep>& steps, int64_t chunks) {
  if (chunks == 1) {
    // Of one number the largest is the most.
    int32_t kept = 0, most = 0;
    for (const PipelineStep& step : steps) {
      if (step.op == PipelineOp::kForward) most = std::max(most, ++kept);
      if (step.op == PipelineOp::kBackward || step.op == PipelineOp::kBackwardWeight) --kept;
    }
    return {most};
  }
  std::vector<std::vector<int32_t>> peaks;
  std::vector<int32_t> kept(static_cast<size_t>(chunks)), last_step, step_to;
  const auto add = [&] {
    // Of several on one line an end is the most.
    bool on_line = !peaks.empty();
    if (on_line) {
      step_to = kept;
      for (size_t i = 0; i < kept.size(); ++i) step_to[i] -= peaks.back()[i];
      on_line = step_to == last_step;
      last_step = step_to;
    }
    if (on_line) {
      peaks.back() = kept;
    } else {
      peaks.push_back(kept);
    }
  };
  bool forward = false;
  for (const PipelineStep& step : steps) {
    if (forward && step.op != PipelineOp::kForward) add();
    forward = step.op == PipelineOp::kForward;
    const auto chunk = static_cast<size_t>(step.chunk);
    if (forward) ++kept[chunk];
    if (step.op == PipelineOp::kBackward || step.op == PipelineOp::kBackwardWeight) --kept[chunk];
  }
  // Of a schedule that goes on in the same way all are the same few.
  std::sort(peaks.begin(), peaks.end());
  peaks.erase(std::unique(peaks.begin(), peaks.end()), peaks.end());
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& peak : peaks) all.insert(all.end(), peak.begin(), peak.end());
  return all;
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
  if (model.experts > 0) {
    // Gradients of experts' results and activations stand where these were saved, but for those
    // that come from other ranks.
    const int64_t rows = inputs.shape.ExpertRows(), c = model.width;
    const int64_t received = inputs.shape.expert_ranks > 1 ? rows * c : 0;
    return tokens * ElementBytes(inputs.precision->activations) *
           (c + (c + 2 * KvWidth(model) + rows * MlpWidth(model)) / inputs.shape.tensor +
            model.experts + received);
  }
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
          &shape.summands,
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

/// Of what a token meets, the part that is trained.
double TrainedShare(const ParameterUses& uses) {
  return static_cast<double>(uses.trained) / static_cast<double>(uses.all);
}

/// Of all stages of a rank.
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

ModelShape OneBlock(const ModelShape& whole, bool first, bool last) {
  ModelSpec model = whole.spec;
  model.distinct_blocks = 0;  // each is its own
  model.freeze = {};
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
  const double attention = width * TwiceTheKeys(shape.spec, length);
  const double blocks = 6 * static_cast<double>(shape.body.all) + 6 * layers * attention;
  std::vector<double> costs(static_cast<size_t>(shape.spec.layers), blocks / layers);
  for (int64_t i = 0; i < shape.spec.layers && !shape.spec.freeze.empty(); ++i) {
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
  if (!whole.spec.freeze.empty()) here.which = std::move(which);
  ModelShape shape(whole.spec, here, whole.tensor, whole.sequence_parallel, whole.tensor_rows,
                   whole.expert_ranks);
  shape.masked_share = whole.masked_share;
  return shape;
}

StageShapes::StageShapes(const ModelShape& whole)
    : whole_(whole),
      inner_(OneBlock(whole, false, false)),
      first_(OneBlock(whole, true, false)),
      last_(OneBlock(whole, false, true)) {}

ModelShape StageShapes::Of(const StageShape& stage) const {
  WEFT_CHECK(!stage.first || !stage.last, "a stage of a pipeline has one end of the network");
  if (!alike()) {
    ModelShape own(whole_.spec, stage, whole_.tensor, whole_.sequence_parallel, whole_.tensor_rows,
                   whole_.expert_ranks);
    own.masked_share = whole_.masked_share;
    return own;
  }
  ModelShape shape = stage.first ? first_ : stage.last ? last_ : inner_;
  ModelShape block = inner_;
  const std::vector<int64_t*> sums = Sums(shape), of_block = Sums(block);
  for (size_t i = 0; i < sums.size(); ++i) *sums[i] += (stage.blocks - 1) * *of_block[i];
  shape.spec.layers = stage.blocks;
  return shape;
}

PipelineHoldings::PipelineHoldings(const PipelineSchedule& schedule) : chunks_(schedule.chunks) {
  for (int64_t rank = 0; rank < schedule.ranks; ++rank) {
    const std::vector<PipelineStep>& steps = schedule.steps[static_cast<size_t>(rank)];
    kept_.push_back(KeptAtPeaks(steps, chunks_));
    deferred_.push_back(MostDeferred(steps));
    messages_.push_back(MostMessagesUnderWay(schedule, rank));
  }
}

int64_t PipelineHoldings::MostKept(int64_t rank, const std::vector<int64_t>& saved) const {
  const std::vector<int32_t>& kept = kept_[static_cast<size_t>(rank)];
  int64_t most = 0;
  for (size_t peak = 0; peak < kept.size(); peak += saved.size()) {
    int64_t bytes = 0;
    for (size_t chunk = 0; chunk < saved.size(); ++chunk)
      bytes += kept[peak + chunk] * saved[chunk];
    most = std::max(most, bytes);
  }
  return most;
}

PipelineMemory::PipelineMemory(const StageShapes& shapes, const std::vector<int64_t>& cut,
                               const PipelineHoldings& holdings)
    : shapes_(shapes), cut_(cut), holdings_(holdings), before_{0} {
  for (const int64_t blocks : cut) before_.push_back(before_.back() + blocks);
}

std::vector<MemoryBreakdown> PipelineMemory::Ranks(const MemoryInputs& inputs) {
  return Ranks(inputs, true);
}

std::vector<MemoryBreakdown> PipelineMemory::DeviceTiers(const MemoryInputs& inputs) {
  return Ranks(inputs, false);
}

std::vector<MemoryBreakdown> PipelineMemory::Ranks(const MemoryInputs& inputs, bool with_host) {
  std::vector<MemoryBreakdown> ranks;
  for (int64_t rank = 0; rank < holdings_.ranks(); ++rank) {
    ranks.push_back(Rank(inputs, rank, with_host));
  }
  return ranks;
}

MemoryBreakdown PipelineMemory::Rank(const MemoryInputs& inputs, int64_t rank, bool with_host) {
  const int64_t element = ElementBytes(inputs.precision->activations);
  const int64_t tokens = inputs.micro_batch * inputs.sequence_length;
  const int64_t row = tokens * element * inputs.shape.spec.width;
  if (!block_) {
    block_ = BlockBytesOf(inputs);
    deferred_block_ = DeferredBytes(inputs);
  }
  const BlockBytes& block = *block_;
  const int64_t count = holdings_.ranks(), chunks = holdings_.chunks();
  saved_.assign(static_cast<size_t>(chunks), 0);
  on_host_ = saved_;
  // All that the rank has, as if it were one stage.
  StageShape here{0, rank == 0, rank + 1 == count};
  if (!shapes_.alike()) here.which = BlocksOfStages(cut_, count, rank);
  int64_t recomputed = 0, attention = 0, untrained = 0, largest = 0, of_one = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const auto stage = static_cast<size_t>(chunk * count + rank);
    const StagePolicy policy(inputs, before_[stage], cut_[stage]);
    here.blocks += policy.blocks;
    recomputed += policy.recomputed;
    attention += policy.attention;
    untrained += policy.untrained;
    largest = std::max(largest, policy.recomputed);
    // What one micro-batch leaves.
    const auto c = static_cast<size_t>(chunk);
    saved_[c] = policy.Saved(block, inputs.recompute_segment);
    of_one += saved_[c];
    if (!inputs.offload_activations) continue;
    // What the last block saves stays.
    const int64_t stays = policy.SavedLast(block);
    on_host_[c] = saved_[c] - stays;
    saved_[c] = stays;
  }
  if (inputs.offload_activations) of_one = *std::max_element(saved_.begin(), saved_.end());
  const int64_t segment =
      std::clamp<int64_t>(inputs.recompute_segment, 1, std::max<int64_t>(largest, 1));
  auto [like, added] = known_.try_emplace(
      {here.blocks, recomputed, attention, segment, here.first, here.last, with_host, here.which});
  if (added) {
    MemoryInputs own = inputs;
    own.recomputed_blocks = recomputed;
    own.attention_blocks = attention;
    own.recompute_segment = segment;
    own.shape = shapes_.Of(here);
    const double share = static_cast<double>(own.shape.Updated()) /
                         static_cast<double>(std::max<int64_t>(inputs.shape.Updated(), 1));
    const auto of_share = [share](int64_t whole) {
      return static_cast<int64_t>(share * static_cast<double>(whole));
    };
    own.optimizer.state = of_share(inputs.optimizer.state);
    own.optimizer.in_file = of_share(inputs.optimizer.in_file);
    // All micro-batches add to gradients on the device.
    if (inputs.offload_optimizer) own.open_gradients = kF32 * own.shape.stored_trained;
    if (inputs.optimizer.state_of_experts > 0) {
      own.optimizer.state_of_experts =
          static_cast<int64_t>(static_cast<double>(inputs.optimizer.state_of_experts) *
                               static_cast<double>(own.shape.stored_trained_experts) /
                               static_cast<double>(inputs.shape.stored_trained_experts));
    }
    like->second = with_host ? PredictMemory(own) : PredictDeviceTier(own);
    // What waits there is of several micro-batches.
    if (with_host) like->second.activations_bytes -= OffloadedActivationBytes(own);
  }
  MemoryBreakdown memory = like->second;
  // One micro-batch is in PredictMemory's peak; one message is asked for ahead. Where no
  // gradients come back three may be on their way to the next rank.
  const bool frozen = untrained == here.blocks && !here.last;
  const int64_t others = std::max<int64_t>(holdings_.MostKept(rank, saved_) - of_one, 0);
  memory.activations_bytes += others + (frozen ? 3 : 1) * row;
  if (with_host) memory.activations_bytes += holdings_.MostKept(rank, on_host_);
  if (inputs.OnCuda()) {
    // Beside codes there are holes (PredictMemory).
    if (inputs.activation_bits > 0) memory.runtime_bytes += others / 6;
    // On a CUDA device the host is ahead, and learns what has gone from what has come.
    memory.activations_bytes += holdings_.Messages(rank) * row;
  }
  // Blocks whose weights have gradients; of others nothing is put off.
  const bool all = shapes_.alike() || holdings_.Deferred(rank) == 0;
  const double trained = all ? 1 : TrainedShare(shapes_.Of(here).body);
  const auto deferred = static_cast<int64_t>(
      trained * static_cast<double>(holdings_.Deferred(rank) * here.blocks * deferred_block_));
  memory.workspace_bytes += (frozen ? 0 : 2 * row) + deferred;
  // Inputs of products that were made again: after a norm, of attention, after a norm.
  const int64_t replayed = std::max<int64_t>(recomputed - untrained, 0);
  const int64_t attentions =
      std::max<int64_t>(attention - std::max<int64_t>(untrained - recomputed, 0), 0);
  memory.activations_bytes +=
      holdings_.Deferred(rank) * (replayed * 3 * row + attentions * block.attended);
  return memory;
}

std::vector<MemoryBreakdown> PredictPipelineRanks(const MemoryInputs& inputs,
                                                  const std::vector<int64_t>& cut,
                                                  const PipelineSchedule& schedule) {
  return PipelineMemory(StageShapes(inputs.shape), cut, PipelineHoldings(schedule)).Ranks(inputs);
}

MemoryBreakdown PredictPipelineMemory(const MemoryInputs& inputs, const std::vector<int64_t>& cut,
                                      const PipelineSchedule& schedule) {
  const std::vector<MemoryBreakdown> ranks = PredictPipelineRanks(inputs, cut, schedule);
  return *std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return TotalBytes(a) < TotalBytes(b);
  });
}

}  // namespace weft
