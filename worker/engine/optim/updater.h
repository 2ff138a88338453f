#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/engine/optim/optimizer.h"

namespace weft::engine {

/// What is known of the gradients of a step when its update is enqueued.
struct StepArgs {
  double learning_rate = 0;
  int64_t update = 1;             ///< How many updates this one makes, counted from 1.
  kernels::UpdateGate gate = {};  ///< Clipping and loss scale as one factor; whether it is made.
  bool keeps_second_moments = false;  ///< As UpdateArgs has it.
  std::vector<bool> frozen = {};      ///< As UpdateArgs has it.
  RestartedState restarted = {};      ///< Likewise.
  const float* gradients = nullptr;   ///< As UpdateArgs has it, and the others.
  bool beside = false;
  UnitIterator* walk = nullptr;
};

/// What happens to the parameters once the gradients of a step are known: clipping of values and
/// the optimizer's rule.
class Updater {
 public:
  /// kInvalid when the job's parameter groups do not fit `parameters`, which outlive it. `compute`:
  /// the type of operands of products. `parts`: what this rank updates, as in NewOptimizer.
  static Result<std::unique_ptr<Updater>> New(Context& context, const JobSpec& job,
                                              const ParameterSet& parameters, DType compute,
                                              std::span<const ParameterPart> parts = {});

  /// Enqueues the optimizer's update.
  Status Update(Context& context, const StepArgs& args);

  /// Whether it repeats, as Optimizer says.
  bool repeats() const { return optimizer_->repeats(); }

  /// The update enqueued last has been applied.
  void OnApplied() { optimizer_->OnApplied(); }

  /// The averages of Optimizer, after `updates` updates.
  Result<std::vector<AveragedParameter>> Averages(Context& context, int64_t updates) const;

  std::vector<NamedTensor> StateTensors() const { return optimizer_->StateTensors(); }

 private:
  explicit Updater(const TrainSpec& train) : train_(train) {}

  TrainSpec train_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace weft::engine
