#include "common/pipeline/zero_bubble.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

PipelineStep StepOf(PipelineOp op, int64_t micro_batch) {
  return {op, 0, static_cast<int32_t>(micro_batch)};
}

PipelineSchedule Empty(int64_t ranks, int64_t micro_batches) {
  PipelineSchedule schedule{.ranks = ranks, .micro_batches = micro_batches, .split_backward = true};
  schedule.steps.resize(static_cast<size_t>(ranks));
  return schedule;
}

// 1F1B whose rank r puts the gradients of weights off by `delay(r)` micro-batches, as far as no
// more than `most_kept` are kept; the paper's figure 3 with a delay of r.
template <class Delay>
PipelineSchedule Delayed(int64_t ranks, int64_t micro_batches, int64_t most_kept, Delay delay) {
  PipelineSchedule schedule = Empty(ranks, micro_batches);
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<PipelineStep>& steps = schedule.steps[static_cast<size_t>(r)];
    const int64_t ahead = std::min({micro_batches, ranks - 1 - r, most_kept - 1});
    const int64_t late = std::clamp<int64_t>(delay(r), 0, most_kept - 1 - ahead);
    for (int64_t i = 0; i < ahead; ++i) steps.push_back(StepOf(PipelineOp::kForward, i));
    int64_t weights = 0;
    for (int64_t i = 0; i < micro_batches; ++i) {
      if (i + ahead < micro_batches) {
        steps.push_back(StepOf(PipelineOp::kForward, i + ahead));
      }
      steps.push_back(StepOf(PipelineOp::kBackwardInput, i));
      if (i >= late) steps.push_back(StepOf(PipelineOp::kBackwardWeight, weights++));
    }
    while (weights < micro_batches) {
      steps.push_back(StepOf(PipelineOp::kBackwardWeight, weights++));
    }
  }
  return schedule;
}

// What a rank does when it could begin something less urgent while the gradient of a micro-batch is
// under way to it: it waits when that comes within this share of the time the other step takes.
struct Patience {
  double before_forward = 0;
  double before_weight = 0;
};

// Builds a schedule step by step, always the one that can begin first.
class ListScheduler {
 public:
  ListScheduler(const PipelineCosts& costs, int64_t micro_batches, std::vector<int64_t> most_kept,
                Patience patience)
      : costs_(costs),
        micro_batches_(micro_batches),
        most_kept_(std::move(most_kept)),
        patience_(patience),
        schedule_(Empty(static_cast<int64_t>(costs.stages.size()), micro_batches)),
        ranks_(costs.stages.size()),
        forward_(Cells(), kNever),
        backward_(Cells(), kNever) {}

  PipelineSchedule Run() && {
    while (true) {
      std::optional<Choice> best;
      size_t rank = 0;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        const std::optional<Choice> choice = Choose(r);
        if (!choice || (best && choice->start >= best->start)) continue;
        best = choice;
        rank = r;
      }
      if (!best) return std::move(schedule_);
      Take(rank, *best);
    }
  }

 private:
  struct Rank {
    double free = 0;
    int64_t forwards = 0;
    int64_t backwards = 0;
    int64_t weights = 0;
  };
  struct Choice {
    PipelineOp op;
    double start;
  };

  size_t Cells() const { return ranks_.size() * static_cast<size_t>(micro_batches_); }
  size_t Cell(size_t rank, int64_t micro_batch) const {
    return rank * static_cast<size_t>(micro_batches_) + static_cast<size_t>(micro_batch);
  }

  // When the rank's next forward or backward step has its input; kNever when nobody knows yet.
  double ForwardArrival(size_t r) const {
    const Rank& rank = ranks_[r];
    if (rank.forwards == micro_batches_ || rank.forwards - rank.weights == most_kept_[r]) {
      return kNever;
    }
    return r == 0 ? 0 : forward_[Cell(r - 1, rank.forwards)] + costs_.hop;
  }
  double BackwardArrival(size_t r) const {
    const Rank& rank = ranks_[r];
    if (rank.backwards == rank.forwards) return kNever;
    if (r + 1 == ranks_.size()) return 0;
    return backward_[Cell(r + 1, rank.backwards)] + costs_.hop;
  }

  std::optional<Choice> Choose(size_t r) const {
    const Rank& rank = ranks_[r];
    const StageCost& cost = costs_.stages[r];
    const double backward = std::max(rank.free, BackwardArrival(r));
    const double forward = std::max(rank.free, ForwardArrival(r));
    if (backward <= forward || backward < forward + patience_.before_forward * cost.forward) {
      if (WeightFits(rank, cost, backward)) return Choice{PipelineOp::kBackwardWeight, rank.free};
      if (backward == kNever) return std::nullopt;
      return Choice{PipelineOp::kBackwardInput, backward};
    }
    if (WeightFits(rank, cost, forward)) return Choice{PipelineOp::kBackwardWeight, rank.free};
    return Choice{PipelineOp::kForward, forward};
  }

  // Whether to fill the time until `next` with the gradient of weights.
  bool WeightFits(const Rank& rank, const StageCost& cost, double next) const {
    if (rank.weights == rank.backwards) return false;
    return next > rank.free && next >= rank.free + patience_.before_weight * cost.backward_weight;
  }

  void Take(size_t r, const Choice& choice) {
    Rank& rank = ranks_[r];
    const StageCost& cost = costs_.stages[r];
    int64_t micro_batch = 0;
    switch (choice.op) {
      case PipelineOp::kForward:
        micro_batch = rank.forwards++;
        rank.free = choice.start + cost.forward;
        forward_[Cell(r, micro_batch)] = rank.free;
        break;
      case PipelineOp::kBackwardInput:
        micro_batch = rank.backwards++;
        rank.free = choice.start + cost.backward_input;
        backward_[Cell(r, micro_batch)] = rank.free;
        break;
      default:
        micro_batch = rank.weights++;
        rank.free = choice.start + cost.backward_weight;
    }
    schedule_.steps[r].push_back(StepOf(choice.op, micro_batch));
  }

  const PipelineCosts& costs_;
  int64_t micro_batches_;
  std::vector<int64_t> most_kept_;
  Patience patience_;
  PipelineSchedule schedule_;
  std::vector<Rank> ranks_;
  std::vector<double> forward_;
  std::vector<double> backward_;
};

// No schedule ends sooner: each rank begins when the first micro-batch has come to it and has all
// of its steps then, and its backward ones when the gradient of the first has come back to it.
double LeastEnd(const PipelineCosts& costs, int64_t micro_batches) {
  const auto passes = static_cast<double>(micro_batches);
  double forwards = 0, least = 0;
  for (const StageCost& stage : costs.stages) {
    least = std::max(least, forwards + passes * (stage.forward + stage.backward()));
    forwards += stage.forward + costs.hop;
  }
  double back = forwards - costs.hop;
  for (auto stage = costs.stages.rbegin(); stage != costs.stages.rend(); ++stage) {
    least = std::max(least, back + passes * stage->backward());
    back += stage->backward_input + costs.hop;
  }
  return least;
}

}  // namespace

Result<PipelineSchedule> ZeroBubbleSchedule(const PipelineCosts& costs, int64_t micro_batches,
                                            int64_t most_kept) {
  const auto ranks = static_cast<int64_t>(costs.stages.size());
  if (ranks < 1 || micro_batches < 1 || most_kept < 1) {
    return InvalidError("a zero-bubble pipeline of " + std::to_string(ranks) + " stages, " +
                        std::to_string(micro_batches) + " micro-batches and " +
                        std::to_string(most_kept) + " of them kept; hint: at least one of each");
  }
  PipelineSchedule best;
  double best_end = kNever;
  const auto consider = [&](PipelineSchedule schedule) -> Status {
    WEFT_ASSIGN_OR_RETURN(const PipelineTimeline timeline, SimulatePipeline(schedule, costs));
    if (timeline.end < best_end) {
      best_end = timeline.end;
      best = std::move(schedule);
    }
    return OkStatus();
  };
  // The first that cannot be beaten is as good as the best of all.
  const double least_end = LeastEnd(costs, micro_batches);
  const auto never = [](int64_t) -> int64_t { return 0; };
  const auto by_rank = [](int64_t rank) { return rank; };
  WEFT_RETURN_IF_ERROR(consider(Delayed(ranks, micro_batches, most_kept, never)));
  WEFT_RETURN_IF_ERROR(consider(Delayed(ranks, micro_batches, most_kept, by_rank)));
  if (best_end <= least_end) return best;
  constexpr double kPatience[] = {0, 0.25, 0.5, 0.75, 1};
  // Ranks that need not keep so much get their gradients back sooner.
  for (const int64_t more : {most_kept, int64_t{1}, int64_t{0}}) {
    std::vector<int64_t> kept;
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t depth = ranks - r;
      kept.push_back(std::min(most_kept, more == 1 ? 2 * depth - 1 : depth + more));
    }
    for (const double before_forward : kPatience) {
      for (const double before_weight : kPatience) {
        WEFT_RETURN_IF_ERROR(consider(
            ListScheduler(costs, micro_batches, kept, {before_forward, before_weight}).Run()));
        if (best_end <= least_end) return best;
      }
    }
  }
  return best;
}

}  // namespace weft
