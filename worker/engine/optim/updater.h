#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/weight_average.h"

namespace weft::engine {

/// What is known of the gradients of a step.
struct StepArgs {
  double learning_rate = 0;
  double gradient_norm = 0;  ///< Without the loss scale, before clipping.
  double loss_scale = 1;     ///< That the gradients still have.
  int64_t update = 1;        ///< How many updates this one makes, counted from 1.
};

/// What happens to the parameters once the gradients of a step stand: clipping, the optimizer's
/// rule, averages of the weights.
class Updater {
 public:
  /// kInvalid when the job's parameter groups do not fit `parameters`, which outlive it. `compute`:
  /// the type of operands of products.
  static Result<std::unique_ptr<Updater>> New(Context& context, const JobSpec& job,
                                              const ParameterSet& parameters, DType compute);

  Status Update(Context& context, const StepArgs& args);

  /// The averages that stand for the parameters in an evaluation after `updates` updates, see
  /// Exchange; empty when the parameters themselves count. Overwrites the gradients.
  std::vector<AveragedParameter> Averages(int64_t updates);

  std::vector<NamedTensor> StateTensors() const;

 private:
  explicit Updater(const TrainSpec& train) : train_(train) {}

  TrainSpec train_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<WeightAverage> average_;  ///< Or none.
};

}  // namespace weft::engine
