#include "common/pipeline/simulate.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace weft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::string NameOf(const PipelineStep& step, int64_t rank) {
  return "step " + std::string(PipelineOpName(step.op)) + std::to_string(step.micro_batch) +
         " of chunk " + std::to_string(step.chunk) + " on rank " + std::to_string(rank);
}

// The ends of all steps by stage and micro-batch, while ranks go through their lists.
class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const PipelineCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        forward_(Cells(), kNever),
        backward_(Cells(), kNever),
        weight_(Cells(), kNever) {}

  // Whether the step exists and comes once, and after what it needs of its own stage.
  Status Admit(int64_t rank, const PipelineStep& step) const {
    if (step.chunk < 0 || step.chunk >= schedule_.chunks || step.micro_batch < 0 ||
        step.micro_batch >= schedule_.micro_batches) {
      return InvalidError(NameOf(step, rank) + " is not of this pipeline: it has " +
                          std::to_string(schedule_.chunks) + " chunks and " +
                          std::to_string(schedule_.micro_batches) + " micro-batches");
    }
    const bool half =
        step.op == PipelineOp::kBackwardInput || step.op == PipelineOp::kBackwardWeight;
    if (step.op != PipelineOp::kForward && half != schedule_.split_backward) {
      return InvalidError(NameOf(step, rank) + ": backward passes are " +
                          (schedule_.split_backward ? "split" : "not split") + " here");
    }
    const size_t cell = Cell(rank, step);
    if (EndsOf(step.op)[cell] != kNever) return InvalidError(NameOf(step, rank) + " comes twice");
    if ((step.op == PipelineOp::kBackward || step.op == PipelineOp::kBackwardInput) &&
        forward_[cell] == kNever) {
      return InvalidError(NameOf(step, rank) + " comes before its forward step");
    }
    if (step.op == PipelineOp::kBackwardWeight && backward_[cell] == kNever) {
      return InvalidError(NameOf(step, rank) + " comes before the gradient of its input");
    }
    return OkStatus();
  }

  // When what the step needs of other stages has arrived; kNever when it has not been made yet.
  double Arrival(int64_t rank, const PipelineStep& step) const {
    const int64_t stage = schedule_.StageOf(rank, step.chunk);
    const double hop = schedule_.ranks > 1 ? costs_.hop : 0;
    switch (step.op) {
      case PipelineOp::kForward:
        return stage == 0 ? 0 : forward_[Cell(stage - 1, step.micro_batch)] + hop;
      case PipelineOp::kBackward:
      case PipelineOp::kBackwardInput:
        return stage + 1 == schedule_.stages() || stage < costs_.first_trained_stage
                   ? 0
                   : backward_[Cell(stage + 1, step.micro_batch)] + hop;
      case PipelineOp::kBackwardWeight:
        return 0;
    }
    return kNever;
  }

  double Duration(int64_t rank, const PipelineStep& step) const {
    const StageCost& cost = CostOf(rank, step);
    switch (step.op) {
      case PipelineOp::kForward:
        return cost.forward;
      case PipelineOp::kBackward:
        return cost.backward();
      case PipelineOp::kBackwardInput:
        return cost.backward_input;
      case PipelineOp::kBackwardWeight:
        return cost.backward_weight;
    }
    return 0;
  }

  // What the step adds to the activations kept when it begins, and takes away when it ends.
  double Kept(int64_t rank, const PipelineStep& step) const {
    return step.op == PipelineOp::kForward ? CostOf(rank, step).activations : 0;
  }
  double Released(int64_t rank, const PipelineStep& step) const {
    const bool last = step.op == PipelineOp::kBackward || step.op == PipelineOp::kBackwardWeight;
    return last ? CostOf(rank, step).activations : 0;
  }

  void Finish(int64_t rank, const PipelineStep& step, double end) {
    EndsOf(step.op)[Cell(rank, step)] = end;
  }

 private:
  size_t Cells() const { return static_cast<size_t>(schedule_.stages() * schedule_.micro_batches); }
  size_t Cell(int64_t stage, int64_t micro_batch) const {
    return static_cast<size_t>(stage * schedule_.micro_batches + micro_batch);
  }
  size_t Cell(int64_t rank, const PipelineStep& step) const {
    return Cell(schedule_.StageOf(rank, step.chunk), step.micro_batch);
  }
  const StageCost& CostOf(int64_t rank, const PipelineStep& step) const {
    return costs_.stages[static_cast<size_t>(schedule_.StageOf(rank, step.chunk))];
  }
  const std::vector<double>& EndsOf(PipelineOp op) const {
    if (op == PipelineOp::kForward) return forward_;
    return op == PipelineOp::kBackwardWeight ? weight_ : backward_;
  }
  std::vector<double>& EndsOf(PipelineOp op) {
    return const_cast<std::vector<double>&>(std::as_const(*this).EndsOf(op));
  }

  const PipelineSchedule& schedule_;
  const PipelineCosts& costs_;
  std::vector<double> forward_;
  std::vector<double> backward_;
  std::vector<double> weight_;
};

// Ranks go on in turns, each as far as it can: the order of turns changes no time. Stops before a
// step that admits(rank, step) refuses; done(rank, step, start, seconds) is called for the others.
template <class Admits, class Done>
void Play(const PipelineSchedule& schedule, Simulation& simulation, const Admits& admits,
          const Done& done) {
  std::vector<size_t> next(schedule.steps.size(), 0);
  std::vector<double> free(schedule.steps.size(), 0);
  bool progress = true;
  while (progress) {
    progress = false;
    for (size_t r = 0; r < next.size(); ++r) {
      const auto rank = static_cast<int64_t>(r);
      for (; next[r] < schedule.steps[r].size(); ++next[r]) {
        const PipelineStep& step = schedule.steps[r][next[r]];
        if (!admits(rank, step)) return;
        const double arrival = simulation.Arrival(rank, step);
        if (arrival == kNever) break;
        const double start = std::max(arrival, free[r]);
        const double duration = simulation.Duration(rank, step);
        free[r] = start + duration;
        simulation.Finish(rank, step, free[r]);
        done(rank, step, start, duration);
        progress = true;
      }
    }
  }
}

// A lone wait says little; all of them show the circle.
Status Stuck(const PipelineSchedule& schedule, const PipelineTimeline& timeline) {
  std::string waits;
  for (size_t r = 0; r < schedule.steps.size(); ++r) {
    const size_t next = timeline.ranks[r].ends.size();
    if (next == schedule.steps[r].size()) continue;
    if (!waits.empty()) waits += ", ";
    waits += NameOf(schedule.steps[r][next], static_cast<int64_t>(r)) + " waits";
  }
  return InvalidError("the pipeline comes to a stop: " + waits + " for a step that never runs");
}

}  // namespace

double PipelineTimeline::BubbleFraction() const {
  double busy = 0;
  for (const Rank& rank : ranks) busy += rank.busy;
  return end > 0 ? 1 - busy / (end * static_cast<double>(ranks.size())) : 0;
}

Result<PipelineTimeline> SimulatePipeline(const PipelineSchedule& schedule,
                                          const PipelineCosts& costs) {
  if (schedule.ranks < 1 || schedule.chunks < 1 || schedule.micro_batches < 1 ||
      static_cast<int64_t>(schedule.steps.size()) != schedule.ranks) {
    return InvalidError(
        "a pipeline of " + std::to_string(schedule.ranks) + " ranks, " +
        std::to_string(schedule.chunks) + " chunks and " + std::to_string(schedule.micro_batches) +
        " micro-batches with the steps of " + std::to_string(schedule.steps.size()) + " ranks");
  }
  if (static_cast<int64_t>(costs.stages.size()) != schedule.stages()) {
    return InvalidError("costs of " + std::to_string(costs.stages.size()) + " stages for " +
                        std::to_string(schedule.stages()));
  }
  const auto ranks = static_cast<size_t>(schedule.ranks);
  Simulation simulation(schedule, costs);
  PipelineTimeline timeline;
  timeline.ranks.resize(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    timeline.ranks[r].starts.reserve(schedule.steps[r].size());
    timeline.ranks[r].ends.reserve(schedule.steps[r].size());
  }
  std::vector<double> kept(ranks, 0);
  Status admitted;
  Play(
      schedule, simulation,
      [&](int64_t rank, const PipelineStep& step) {
        admitted = simulation.Admit(rank, step);
        return admitted.ok();
      },
      [&](int64_t rank, const PipelineStep& step, double start, double duration) {
        const auto r = static_cast<size_t>(rank);
        PipelineTimeline::Rank& own = timeline.ranks[r];
        own.starts.push_back(start);
        own.ends.push_back(start + duration);
        own.busy += duration;
        kept[r] += simulation.Kept(rank, step);
        own.peak_activations = std::max(own.peak_activations, kept[r]);
        kept[r] -= simulation.Released(rank, step);
        timeline.end = std::max(timeline.end, start + duration);
      });
  WEFT_RETURN_IF_ERROR(admitted);
  const int64_t steps_of_a_rank =
      schedule.chunks * schedule.micro_batches * (schedule.split_backward ? 3 : 2);
  for (size_t r = 0; r < ranks; ++r) {
    if (timeline.ranks[r].ends.size() < schedule.steps[r].size()) {
      return Stuck(schedule, timeline);
    }
    // None came twice, so a smaller number alone can be wrong.
    if (static_cast<int64_t>(schedule.steps[r].size()) != steps_of_a_rank) {
      return InvalidError("rank " + std::to_string(r) + " has " +
                          std::to_string(schedule.steps[r].size()) + " steps of " +
                          std::to_string(steps_of_a_rank));
    }
  }
  return timeline;
}

double EndOfPipeline(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  Simulation simulation(schedule, costs);
  double end = 0;
  Play(
      schedule, simulation, [](int64_t, const PipelineStep&) { return true; },
      [&](int64_t, const PipelineStep&, double start, double duration) {
        end = std::max(end, start + duration);
      });
  return end;
}

}  // namespace weft
