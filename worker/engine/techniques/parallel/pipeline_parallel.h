#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/pipeline/schedule.h"
#include "common/spec/plan.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/pipeline_part.h"

namespace weft::engine {

/// The ranks of a pipeline, each with one stage of the model or several
/// (common/pipeline/schedule.h), and how they talk. Messages of a kind between two ranks have a
/// group of their own, in which nothing else waits: whoever sends goes on at once, and a schedule
/// that CheckSchedule and CheckMessageOrder let pass cannot come to a stop.
class PipelineParallel {
 public:
  struct Options {
    std::string schedule = "1f1b";  ///< As common/pipeline/named_schedule.h has it.
    int64_t chunks = 1;
    bool tied = false;  ///< The first and the last stage share parameters.
    /// Stages before it have nothing to train: FirstTrainedStage of common/model/pipeline_shape.h.
    int64_t first_trained_stage = 0;
  };

  /// All ranks of `stages`, two or more in the order of the pipeline, call it. `stages` outlives
  /// this. kInvalid when the schedule cannot be.
  static Result<std::unique_ptr<PipelineParallel>> New(Collective* stages, const Options& options);

  int64_t rank() const { return stages_->rank(); }
  int64_t degree() const { return stages_->size(); }
  int64_t chunks() const { return options_.chunks; }

  /// The steps of all ranks, for this many micro-batches; lives as long as this.
  Result<const PipelineSchedule*> ScheduleOf(int64_t micro_batches);

  /// Whether stage `chunk` of this rank is the first or the last one of all.
  bool first(int64_t chunk) const { return rank() == 0 && chunk == 0; }
  bool last(int64_t chunk) const { return rank() + 1 == degree() && chunk + 1 == chunks(); }

  int64_t first_trained_stage() const { return options_.first_trained_stage; }
  /// Whether that stage gets the gradient of what it computes from the next one ...
  bool GetsGradients(int64_t chunk) const {
    return !last(chunk) && StageOf(chunk) >= first_trained_stage();
  }
  /// ... and whether it sends that of what it reads to the stage before.
  bool SendsGradients(int64_t chunk) const { return StageOf(chunk) > first_trained_stage(); }

  /// One of the ways that messages take from this rank or to it.
  enum class Direction : uint8_t {
    kToNext,        ///< What a stage computes, to the stage after it.
    kFromPrevious,  ///< The same, where it arrives.
    kToPrevious,    ///< Gradients of what a stage reads, to the stage before it.
    kFromNext,
  };
  Work Send(const Stream& stream, Direction direction, const TensorView& values);
  Work Receive(const Stream& stream, Direction direction, const TensorView& values);
  /// Bytes that have gone a way so far, by the account of its group.
  double BytesOn(Direction direction) const;

  /// Replaces each value by its sum over the ranks, added in rank order.
  Status SumScalars(std::span<double> values) const;

  /// Replaces the gradients of parameters that the first and the last stage share, or all of them
  /// (ParameterList::SetOfAllBlocks), by their sums, the same bits on all that have them.
  Status SumSharedGradients(const Stream& stream, const ParameterSet& parameters) const;

  /// The accounts of its groups except `stages`.
  std::vector<AxisAccount> Accounts() const;

  /// Leaves all groups but `stages`: the peers fail at once. From any thread.
  void Abort();

 private:
  struct End {
    std::unique_ptr<Collective> group;  ///< Of two ranks, or none.
    int peer = 0;
  };

  PipelineParallel(Collective* stages, const Options& options)
      : stages_(stages), options_(options) {}
  Status Connect();
  int64_t StageOf(int64_t chunk) const { return chunk * degree() + rank(); }
  End& On(Direction direction) { return ends_[static_cast<size_t>(direction)]; }

  Collective* stages_;
  Options options_;
  End ends_[4];                         ///< By Direction.
  std::unique_ptr<Collective> shared_;  ///< The first and the last rank, where they share.
  std::map<int64_t, PipelineSchedule> schedules_;  ///< By number of micro-batches.
};

/// The stages of `plan` that `rank` of the pipeline has. kInvalid when plan.stage_blocks are not
/// those of a model of this many layers.
Result<PipelinePart> PipelinePartOf(const Plan& plan, int64_t rank, int64_t layers);

}  // namespace weft::engine
