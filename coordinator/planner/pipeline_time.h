#pragma once

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "common/model/pipeline_shape.h"
#include "common/pipeline/simulate.h"
#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// Seconds of any stage of a network whose blocks are all alike, as the sum of what it consists of.
struct StageSeconds {
  double block = 0;  ///< Each of its blocks,
  double stage = 0;  ///< what it takes besides them,
  double first = 0;  ///< what comes before the first block of all
  double last = 0;   ///< and after the last one.
};

/// What passes over the stages of pipelines cost on one kind of worker, for any cut of a network.
class StagePasses {
 public:
  /// Costs are those of CostOfPass for each stage; dense blocks next to those in a format count as
  /// if each stage had its share of them. `shapes`, `rates` and `train` outlive it.
  StagePasses(const StageShapes& shapes, int64_t micro_batch, int64_t sequence_length,
              const PrecisionRecipe& precision, const FormatBlocks& format_blocks, double dropout,
              const StepRates& rates, int64_t threads, int64_t context_ranks,
              const TechniqueProducts& techniques, const TrainSpec& train);

  const StageShapes& shapes() const { return shapes_; }
  const StepRates& rates() const { return rates_; }
  /// The cost of a stage that is `shape`.
  PassCost Of(const ModelShape& shape) const;

  /// What no stage's pass, or its forward part, takes less than in a pipeline of one micro-batch,
  /// and what it takes more to read gradients to which it adds.
  struct Least {
    StageSeconds pass;
    StageSeconds forward;
    StageSeconds reads;
  };
  /// Takes ranks to be as near as they are in `inputs`: on GPUs without what the processor is
  /// waited for, on processors the products and what tensor- and expert-parallel ranks send each
  /// other. For blocks that are all alike.
  Least LeastSeconds(StepInputs inputs) const;

 private:
  const StageShapes& shapes_;
  const StepRates& rates_;
  std::function<PassCost(const ModelShape&)> cost_of_;
  PassCost inner_, first_, last_;  ///< Of one block, where all are alike,
  PassCost next_;                  ///< and what each more adds.
};

/// A stage's part of a step of one micro-batch, and its passes. What is of a step, whatever passes
/// it has, is in neither.
struct StageForecast {
  TimeBreakdown time;
  StageCost cost;
};

inline double SecondsOfPass(const StageCost& cost) {
  return cost.forward + cost.backward_input + cost.backward_weight;
}

/// Forecasts each stage, where they have this many blocks. `inputs` are those of one rank with the
/// whole network. Every micro-batch after the first reads the gradients to which it adds: each has
/// its part of that.
std::vector<StageForecast> PredictStages(const StepInputs& inputs, const std::vector<int64_t>& cut,
                                         const StagePasses& passes);

/// What no schedule of a pipeline takes less than, for any number of micro-batches.
class PipelineFloor {
 public:
  /// A rank does nothing before the first micro-batch has come through the stages before its own,
  /// then has its passes, and after the last one, if it is a whole backward pass (not
  /// `split_backward`), those stages have theirs.
  PipelineFloor(const PipelineCosts& costs, int64_t ranks, bool split_backward);

  double Seconds(int64_t passes) const;

 private:
  struct Rank {
    double before = 0;
    double pass = 0;
  };
  std::vector<Rank> ranks_;
};

/// The same for any stages that are cut so, by what they consist of: many networks are cut alike.
class CutFloor {
 public:
  /// `cut`: blocks of each stage.
  CutFloor(const std::vector<int64_t>& cut, int64_t ranks);

  /// PipelineFloor::Seconds where stages take `pass`, and before the first micro-batch comes to a
  /// rank those before its own take `before`.
  double Seconds(const StageSeconds& pass, const StageSeconds& before, int64_t passes) const;

 private:
  struct Rank {
    int64_t number = 0;
    int64_t blocks_before = 0;  ///< In the stages through which the first micro-batch comes to it.
    int64_t blocks = 0;         ///< Of all its stages.
  };
  /// Without those that no others of the inner ranks wait for.
  std::vector<Rank> ranks_;
  int64_t count_ = 1;
  int64_t chunks_ = 1;
};

/// Machines of one kind with ranks of a pipeline.
struct PipelinePlace {
  const StagePasses* passes = nullptr;
  int64_t ranks_on_worker = 1;  ///< Of the job.
  bool operator<(const PipelinePlace& other) const {
    return std::tie(passes, ranks_on_worker) < std::tie(other.passes, other.ranks_on_worker);
  }
};

/// What else the step depends on.
struct PipelineTimeInputs {
  const std::vector<int64_t>& cut;  ///< Blocks of each stage.
  /// All places of the replicas of each rank of the pipeline. A stage takes what it takes on the
  /// one that is slowest at it.
  const std::vector<std::vector<PipelinePlace>>& places;
  bool within_worker = false;  ///< Neighbours in the pipeline are on one machine.
};

/// The step of a pipeline, before its schedule is played through.
struct PipelineForecast {
  PipelineCosts costs;  ///< In seconds; exchange of gradients and update come after the passes.
  /// Computing is that of the rank that computes most, without what it waits for; update and
  /// exchange are those of the rank that they take longest.
  TimeBreakdown slowest;
  double once_seconds = 0;  ///< What is of a step, whatever passes it has.

  /// The whole step where the last pass ends then: what the passes take beyond those of that rank
  /// is exposed communication.
  TimeBreakdown StepUntil(double end) const;
};

/// PredictStep of a pipeline, except its end (common/pipeline/simulate.h with these costs).
/// `inputs` are those of one rank with the whole network.
PipelineForecast PredictPipeline(const StepInputs& inputs, const PipelineTimeInputs& pipeline);

}  // namespace weft::planner
