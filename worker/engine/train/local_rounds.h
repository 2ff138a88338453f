#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/spec/local_steps.h"
#include "common/spec/train_spec.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/techniques/parallel/gradient_reducer.h"
#include "worker/engine/techniques/parallel/outer_step.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/train/step_clock.h"
#include "worker/engine/train/step_report.h"

namespace weft::engine {

/// Rounds of train.local_steps or local_round_seconds: steps that each worker makes by itself, and
/// the outer step at their end, in which all workers meet. Not thread-safe.
class LocalRounds {
 public:
  /// `parameters` and `ranks`, which sums over the workers and is none for one worker, outlive
  /// this; `rank`: of this worker. `state`: where the parameters are. kExhausted without memory for
  /// the outer step's state.
  static Result<std::unique_ptr<LocalRounds>> New(Context& state, const TrainSpec& train,
                                                  const ParameterSet& parameters,
                                                  GradientReducer* ranks, int64_t rank);

  /// This worker has updated its parameters.
  void OnUpdated() { ++updates_; }

  /// Counts the local step of `report`.
  void AddStep(const StepReport& report) { tokens_ += report.tokens - report.padding_tokens; }

  /// Inside of a round: counts of tokens become what they are if the others had the same. They say
  /// what they have in the outer step.
  void EstimateAll(StepReport& report) const;

  /// The outer step. The report of the local step before it, or of the round, becomes one of all
  /// workers: loss and counts of the global batch. In rounds by time its targets are what a worker
  /// has learned from, which is its weight. Its update was skipped where some worker has made none
  /// since the last outer step. Counters become the largest of the workers, the loss scale the
  /// smallest. The parameters have changed then. `on_learned` is called while the gradients are
  /// what this worker has learned. After an error of the ranks nothing has changed: the outer step
  /// can be made again, with other ranks.
  Status Finish(Context& context, StepClock& clock, const std::function<Status()>& on_learned,
                TrainCounters& counters, StepReport& report);

  /// Other workers come together from now on, and this is the one of that rank; see New.
  void Regroup(GradientReducer* ranks, int64_t rank) {
    outer_->SetRanks(ranks);
    rank_ = rank;
  }

  /// Replaces each value by its sum over the workers.
  Status SumScalars(std::span<double> values) { return outer_->SumScalars(values); }

  /// The value that OuterStep has.
  TensorView value(int64_t parameter) const { return outer_->value(parameter); }
  std::vector<NamedTensor> StateTensors() const { return outer_->StateTensors(); }
  Status Restored(const Context& context, bool restored);

 private:
  LocalRounds(std::unique_ptr<OuterStep> outer, const TrainSpec& train, int64_t rank)
      : outer_(std::move(outer)), by_time_(TimesRounds(train)), rank_(rank) {}

  /// Returns the weight of this worker in the outer step.
  Result<double> Agree(TrainCounters& counters, StepReport& report);

  std::unique_ptr<OuterStep> outer_;
  bool by_time_;
  int64_t rank_;
  int64_t updates_ = 0;  ///< Of this worker since the last outer step.
  int64_t tokens_ = 0;   ///< Likewise.
};

}  // namespace weft::engine
