#include "coordinator/planner/pipeline_time.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/model/parameter_list.h"
#include "coordinator/planner/model_parallel_time.h"
#include "coordinator/planner/step_time.h"

namespace weft::planner {
namespace {

double ComputeSeconds(const TimeBreakdown& time) {
  return time.gemm_seconds + time.memory_bound_seconds + time.recompute_seconds +
         time.overhead_seconds;
}

/// What comes after the passes of a rank.
double SecondsAfterPasses(const TimeBreakdown& time) {
  return time.optimizer_seconds + time.exposed_communication_seconds;
}

/// Whether `seconds` are more than `most`, and not by rounding alone: of equals the first counts.
bool IsLonger(double seconds, double most) {
  constexpr double kRounding = 1e-9;
  return seconds > most * (1 + kRounding);
}

/// Raises each part of `most` to that of `cost`.
void RaiseTo(const StageCost& cost, StageCost& most) {
  most.forward = std::max(most.forward, cost.forward);
  most.backward_input = std::max(most.backward_input, cost.backward_input);
  most.backward_weight = std::max(most.backward_weight, cost.backward_weight);
}

void Add(const TimeBreakdown& part, double times, TimeBreakdown& sum) {
  sum.gemm_seconds += times * part.gemm_seconds;
  sum.memory_bound_seconds += times * part.memory_bound_seconds;
  sum.recompute_seconds += times * part.recompute_seconds;
  sum.overhead_seconds += times * part.overhead_seconds;
  sum.optimizer_seconds += part.optimizer_seconds;
  sum.exposed_communication_seconds += part.exposed_communication_seconds;
}

// Seconds of a pass through all stages of a rank.
double SecondsOfRank(const std::vector<StageCost>& stages, size_t rank, size_t ranks) {
  double seconds = 0;
  for (size_t stage = rank; stage < stages.size(); stage += ranks) {
    seconds += SecondsOfPass(stages[stage]);
  }
  return seconds;
}

int64_t PartOf(int64_t bytes, int64_t numbers, int64_t all_numbers) {
  return static_cast<int64_t>(static_cast<double>(bytes) * static_cast<double>(numbers) /
                              static_cast<double>(std::max<int64_t>(all_numbers, 1)));
}

/// Adds to `sum` what grows with the blocks and ends of a stage.
void AddPass(const PassCost& part, double times, PassCost& sum) {
  sum.gemm_seconds += times * part.gemm_seconds;
  sum.backward_gemm_seconds += times * part.backward_gemm_seconds;
  sum.memory_bytes += times * part.memory_bytes;
  sum.step_product_seconds += times * part.step_product_seconds;
  sum.step_f32_numbers += times * part.step_f32_numbers;
  sum.step_parameter_numbers += times * part.step_parameter_numbers;
  sum.ranked.Add(part.ranked, times);
  sum.gathered_list_seconds += times * part.gathered_list_seconds;
  sum.packing_seconds += times * part.packing_seconds;
}

/// Weights that come in the passes of a stage of this many blocks. The backward pass waits for its
/// first ones, too: nothing stays between the passes.
StreamedBytes StreamedOfStage(const StepInputs::StreamedStage& one, int64_t blocks, bool first,
                              bool last) {
  const StreamedBytes& end = first ? one.first : last ? one.last : one.inner;
  const int64_t waited = last ? end.backward - one.inner.backward : one.inner.backward;
  const int64_t others = blocks - 1;
  return {.first = end.first + waited,
          .forward = end.forward + others * one.inner.forward + waited,
          .backward = end.backward + others * one.inner.backward - waited};
}

/// A forward pass is a third of the work, or what frozen parameters leave of it for the backward
/// pass; what is recomputed comes there.
StageCost CostOfStage(const ModelShape& shape, bool any_frozen, const PassCost& pass, double plain,
                      double recomputing, double within) {
  if (!any_frozen && shape.first_trained_layer == 0) {
    return {plain / 3 + within / 2, plain / 3 + recomputing + within / 2, plain / 3, 0};
  }
  const double backward =
      pass.gemm_seconds > 0 ? plain * pass.backward_gemm_seconds / pass.gemm_seconds : 0;
  if (backward == 0) return {plain + within, 0, 0, 0};
  const auto trained = static_cast<double>(shape.body.trained + shape.head.trained);
  const auto through = static_cast<double>(shape.body.backward + shape.head.backward);
  const double weights = backward * trained / std::max(trained + through, 1.0);
  return {plain - backward + within / 2, backward - weights + recomputing + within / 2, weights, 0};
}

/// Two ranks of a pipeline that send each other activations, over the worst of their links. Where a
/// rank has several stages, the last one sends to the first one.
RankGroup Neighbours(const StepInputs& inputs, const PipelineTimeInputs& pipeline) {
  RankGroup group{.ranks = 2, .on_worker = pipeline.within_worker ? 2 : 1};
  if (inputs.links != nullptr && !pipeline.within_worker) {
    group.link = inputs.links->OfHops(inputs.ranks * inputs.shape.tensor,
                                      pipeline.cut.size() > pipeline.places.size());
  }
  return group;
}

}  // namespace

StagePasses::StagePasses(const StageShapes& shapes, int64_t micro_batch, int64_t sequence_length,
                         const PrecisionRecipe& precision, const FormatBlocks& format_blocks,
                         double dropout, const StepRates& rates, int64_t threads,
                         int64_t context_ranks, const TechniqueProducts& techniques,
                         const TrainSpec& train)
    : shapes_(shapes),
      rates_(rates),
      cost_of_([=, &precision, &rates, &train,
                share = FormatShare(shapes.whole().spec, precision, format_blocks)](
                   const ModelShape& shape) {
        return CostOfPass(shape, micro_batch, sequence_length, precision, share, dropout, rates,
                          threads, context_ranks, techniques, train);
      }) {
  if (!shapes.alike()) return;
  const auto pass_of = [&](const StageShape& stage) { return cost_of_(shapes.Of(stage)); };
  inner_ = pass_of({1, false, false});
  first_ = pass_of({1, true, false});
  last_ = pass_of({1, false, true});
  next_ = pass_of({2, false, false});
  AddPass(inner_, -1, next_);
}

PassCost StagePasses::Of(const ModelShape& shape) const {
  if (!shapes_.alike()) return cost_of_(shape);
  PassCost pass = shape.embeds ? first_ : shape.has_head ? last_ : inner_;
  AddPass(next_, static_cast<double>(shape.spec.layers - 1), pass);
  pass.weight_gradient_bytes = WeightGradientBytes(shape);
  return pass;
}

StagePasses::Least StagePasses::LeastSeconds(StepInputs inputs) const {
  struct Seconds {
    double pass, forward, reads;
  };
  const auto seconds_of = [&](const StageShape& stage) -> Seconds {
    inputs.shape = shapes_.Of(stage);
    const PassCost pass = Of(inputs.shape);
    const double plain = pass.gemm_seconds +
                         rates_.LeastMemorySeconds(pass.memory_bytes + pass.weight_gradient_bytes);
    const double within = TensorSeconds(inputs, rates_) + ExpertSeconds(inputs, rates_);
    return {plain + within, plain / 3 + within / 2,
            rates_.LeastMemorySeconds(pass.weight_gradient_bytes)};
  };
  const Seconds one = seconds_of({1, false, false}), two = seconds_of({2, false, false});
  const Seconds first = seconds_of({1, true, false}), last = seconds_of({1, false, true});
  const auto parts = [&](double Seconds::*of) -> StageSeconds {
    const double block = two.*of - one.*of;
    return {block, one.*of - block, first.*of - one.*of, last.*of - one.*of};
  };
  return {parts(&Seconds::pass), parts(&Seconds::forward), parts(&Seconds::reads)};
}

std::vector<StageForecast> PredictStages(const StepInputs& inputs, const std::vector<int64_t>& cut,
                                         const StagePasses& passes) {
  const StepRates& rates = passes.rates();
  const double once = rates.step_seconds();
  const double bandwidth = rates.MemoryBytesPerSecond(inputs.place());
  const double passes_of_step = D(inputs.accumulation_steps);
  const double reads = inputs.GradientReads(passes_of_step) / passes_of_step;
  const auto last = std::ssize(cut) - 1;
  const bool alike = passes.shapes().alike();
  std::vector<StageForecast> stages;
  stages.reserve(cut.size());
  StepInputs own = inputs;
  own.accumulation_steps = 1;
  own.schedule.clear();  // which offloads nothing
  // Between the first and the last, those with as many blocks are the same: blocks, recomputed,
  // those whose attention is.
  std::map<std::tuple<int64_t, int64_t, int64_t>, StageForecast> known;
  int64_t first = 0;
  for (int64_t stage = 0; stage <= last; ++stage) {
    const int64_t blocks = cut[static_cast<size_t>(stage)];
    if (inputs.schedule.empty()) {
      own.recomputed_blocks = std::clamp<int64_t>(inputs.recomputed_blocks - first, 0, blocks);
      own.recomputed_attentions = std::clamp<int64_t>(
          inputs.recomputed_blocks + inputs.recomputed_attentions - first - own.recomputed_blocks,
          0, blocks - own.recomputed_blocks);
    } else {
      const Result<RematPlan> schedule = StageOf(inputs.schedule, first, blocks);
      WEFT_CHECK(schedule.ok(), schedule.status().message());
      own.recomputed_blocks = ReplayedBlocks(*schedule);
      own.recomputed_attentions = ReplayedAttentions(*schedule);
    }
    std::vector<int64_t> which;
    for (int64_t i = 0; i < blocks && !alike; ++i) which.push_back(first + i);
    first += blocks;
    const bool inner = stage > 0 && stage < last && alike;
    const std::tuple kind{blocks, own.recomputed_blocks, own.recomputed_attentions};
    const auto same = known.find(kind);
    if (inner && same != known.end()) {
      stages.push_back(same->second);
      continue;
    }
    own.shape = passes.shapes().Of({blocks, stage == 0, stage == last, std::move(which)});
    own.file_bytes = PartOf(inputs.file_bytes, own.shape.trained, inputs.shape.trained);
    own.uploaded_weight_bytes =
        PartOf(inputs.uploaded_weight_bytes, own.shape.stored, inputs.shape.stored);
    // What the last block of a stage saves stays.
    own.activation_bytes =
        PartOf(inputs.activation_bytes, blocks - 1, inputs.shape.spec.layers - 1);
    if (inputs.streamed.forward > 0) {
      own.streamed = StreamedOfStage(inputs.streamed_stage, blocks, stage == 0, stage == last);
    }
    own.file_pass = StreamedOfStage(inputs.filed_stage, blocks, stage == 0, stage == last);
    const int64_t whole = blocks - own.recomputed_blocks - own.recomputed_attentions;
    own.compressed_bytes = whole * inputs.compressed_block.all +
                           own.recomputed_attentions * inputs.compressed_block.but_attention +
                           own.recomputed_blocks * inputs.compressed_block.input;
    const PassCost pass = passes.Of(own.shape);
    StageForecast made;
    made.time = PredictStep(own, pass, rates);
    // What tensor-, expert- and context-parallel ranks send, and waits for activations that come
    // and go, are parts of each pass, and not of the step alone.
    double within =
        TensorSeconds(own, rates) + ExpertSeconds(own, rates) + ContextSeconds(own, pass, rates);
    if (own.activation_bytes > 0 || own.streamed.forward > 0 || own.file_pass.forward > 0) {
      own.activation_bytes = 0;
      own.streamed = {};
      own.file_pass = {};
      within += made.time.exposed_communication_seconds -
                PredictStep(own, pass, rates).exposed_communication_seconds;
    }
    made.time.exposed_communication_seconds -= within;
    made.time.memory_bound_seconds += reads * pass.weight_gradient_bytes / bandwidth;
    made.time.overhead_seconds -= once;
    const double recomputing = made.time.recompute_seconds;
    const double plain = ComputeSeconds(made.time) - recomputing;
    const bool any_frozen = !alike && FreezesAny(own.shape.spec);
    made.cost = CostOfStage(own.shape, any_frozen, pass, plain, recomputing, within);
    if (inner) known[kind] = made;
    stages.push_back(made);
  }
  return stages;
}

PipelineFloor::PipelineFloor(const PipelineCosts& costs, int64_t ranks, bool split_backward) {
  double before = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Rank own{
        before, SecondsOfRank(costs.stages, static_cast<size_t>(rank), static_cast<size_t>(ranks))};
    const StageCost& cost = costs.stages[static_cast<size_t>(rank)];
    before += cost.forward + costs.hop;
    if (!split_backward && rank >= costs.first_trained_stage) {
      before += cost.backward() + costs.hop;
    }
    // One that begins no later and takes no longer decides nothing.
    while (!ranks_.empty() && ranks_.back().pass <= own.pass) ranks_.pop_back();
    ranks_.push_back(own);
  }
}

double PipelineFloor::Seconds(int64_t passes) const {
  double least = 0;
  for (const Rank& rank : ranks_) {
    least = std::max(least, rank.before + static_cast<double>(passes) * rank.pass);
  }
  return least;
}

CutFloor::CutFloor(const std::vector<int64_t>& cut, int64_t ranks)
    : count_(ranks), chunks_(std::ssize(cut) / ranks) {
  int64_t before = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Rank own{rank, before, 0};
    for (auto stage = static_cast<size_t>(rank); stage < cut.size();
         stage += static_cast<size_t>(ranks)) {
      own.blocks += cut[stage];
    }
    before += cut[static_cast<size_t>(rank)];
    // What is at the ends is known only with the seconds.
    while (ranks_.size() > 1 && rank + 1 < ranks && ranks_.back().blocks <= own.blocks) {
      ranks_.pop_back();
    }
    ranks_.push_back(own);
  }
}

double CutFloor::Seconds(const StageSeconds& pass, const StageSeconds& before,
                         int64_t passes) const {
  double least = 0;
  for (const Rank& rank : ranks_) {
    double own =
        static_cast<double>(chunks_) * pass.stage + static_cast<double>(rank.blocks) * pass.block;
    if (rank.number == 0) own += pass.first;
    if (rank.number + 1 == count_) own += pass.last;
    own *= static_cast<double>(passes);
    if (rank.number > 0) {
      own += before.first + static_cast<double>(rank.number) * before.stage +
             static_cast<double>(rank.blocks_before) * before.block;
    }
    least = std::max(least, own);
  }
  return least;
}

TimeBreakdown PipelineForecast::StepUntil(double end) const {
  TimeBreakdown time = slowest;
  time.exposed_communication_seconds += std::max(0.0, end - ComputeSeconds(slowest));
  time.overhead_seconds += once_seconds;
  return time;
}

PipelineForecast PredictPipeline(const StepInputs& inputs, const PipelineTimeInputs& pipeline) {
  const double bytes = static_cast<double>(inputs.tokens * inputs.shape.spec.width *
                                           ElementBytes(inputs.precision->activations));
  PipelineForecast forecast;
  PipelineCosts& costs = forecast.costs;
  costs.stages.resize(pipeline.cut.size());
  costs.first_trained_stage = FirstTrainedStage(inputs.shape.spec, pipeline.cut);
  std::map<PipelinePlace, std::vector<StageForecast>> known;
  const size_t ranks = pipeline.places.size();
  const RankGroup neighbours = Neighbours(inputs, pipeline);
  TimeBreakdown& slowest = forecast.slowest;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const PipelinePlace& place : pipeline.places[rank]) {
      auto [at, added] = known.try_emplace(place);
      if (added) {
        StepInputs own = inputs;
        own.ranks_on_worker = place.ranks_on_worker;
        const StepRates& rates = place.passes->rates();
        at->second = PredictStages(own, pipeline.cut, *place.passes);
        const Wire wire = rates.PointToPoint(own.place(), neighbours);
        costs.hop = std::max(costs.hop, wire.message_seconds + bytes / wire.bytes_per_second);
        forecast.once_seconds = std::max(forecast.once_seconds, rates.step_seconds());
      }
      TimeBreakdown time;
      for (size_t stage = rank; stage < costs.stages.size(); stage += ranks) {
        const StageForecast& one = at->second[stage];
        Add(one.time, static_cast<double>(inputs.accumulation_steps), time);
        RaiseTo(one.cost, costs.stages[stage]);
      }
      if (IsLonger(ComputeSeconds(time), ComputeSeconds(slowest))) {
        slowest.gemm_seconds = time.gemm_seconds;
        slowest.memory_bound_seconds = time.memory_bound_seconds;
        slowest.recompute_seconds = time.recompute_seconds;
        slowest.overhead_seconds = time.overhead_seconds;
      }
      if (IsLonger(SecondsAfterPasses(time), SecondsAfterPasses(slowest))) {
        slowest.optimizer_seconds = time.optimizer_seconds;
        slowest.exposed_communication_seconds = time.exposed_communication_seconds;
      }
    }
  }
  return forecast;
}

}  // namespace weft::planner
