#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/weight_average.h"

namespace weft::engine {

/// What is known of the gradients of a step when its update is enqueued.
struct StepArgs {
  double learning_rate = 0;
  int64_t update = 1;                ///< How many updates this one makes, counted from 1.
  kernels::UpdateGate gate = {};     ///< Clipping and loss scale as one factor; whether it is made.
  const float* gradients = nullptr;  ///< As UpdateArgs has it, and the others.
  bool beside = false;
  UnitWalk* walk = nullptr;
};

/// What happens to the parameters once the gradients of a step stand: the optimizer's rule,
/// averages of the weights.
class Updater {
 public:
  /// kInvalid when the job's parameter groups do not fit `parameters`, which outlive it. `compute`:
  /// the type of operands of products. `parts`: what this rank updates, as in NewOptimizer.
  static Result<std::unique_ptr<Updater>> New(Context& context, const JobSpec& job,
                                              const ParameterSet& parameters, DType compute,
                                              std::span<const ParameterPart> parts = {});

  /// Enqueues the optimizer's update.
  Status Update(Context& context, const StepArgs& args);

  /// As Optimizer has it.
  bool repeats() const { return optimizer_->repeats(); }

  /// Whether Made looks at the parameters.
  bool averages() const { return average_ != nullptr; }

  /// The update enqueued last, number `update`, has been made.
  Status Made(Context& context, int64_t update);

  /// The averages that stand for the parameters in an evaluation after `updates` updates, see
  /// Exchange; empty when the parameters themselves count. Of the parts that this rank updates.
  /// Overwrites the gradients.
  Result<std::vector<AveragedParameter>> Averages(Context& context, int64_t updates);

  std::vector<NamedTensor> StateTensors() const;

 private:
  explicit Updater(const TrainSpec& train) : train_(train) {}

  TrainSpec train_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<WeightAverage> average_;  ///< Or none.
};

}  // namespace weft::engine
