#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"
#include "kernels/optimizer/optimizer.h"
#include "worker/engine/nn/parameter_file_iterator.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/optim/averaged_parameter.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Parameters whose state in the optimizer has been made zero between updates.
struct RestartedState {
  std::vector<bool> parameters = {};  ///< By index; empty: none.
  int64_t updates = 0;                ///< That have been made since.
};

struct UpdateArgs {
  double learning_rate = 0;
  double gradient_scale = 1;      ///< Multiplies the gradients on the fly.
  double gradient_limit = 0;      ///< Largest absolute value of a gradient after that; 0: none.
  int64_t update = 1;             ///< How many updates this one makes, counted from 1.
  kernels::UpdateGate gate = {};  ///< A further factor, and whether it is made at all.
  /// Second moments of adam and adamw stay as they are (AdamArgs::keeps_second_moments).
  bool keeps_second_moments = false;
  /// The parameters, by index, that the rules of FindFusedRule leave as they are with their state;
  /// empty: none.
  std::vector<bool> frozen = {};
  RestartedState restarted = {};  ///< Of the same rules, whose updates are then counted from there.
  /// Where the buffer of gradients is that ParameterSet::gradients() was at first; none: there.
  /// Read by what runs in the host memory pool.
  const float* gradients = nullptr;
  bool beside = false;  ///< It runs in a thread of its own, which the rank's does not wait for.
  /// For parameters in a file: goes through them where another object reads and writes them.
  UnitIterator* walk = nullptr;
};

/// A rule that moves the parameters of one ParameterSet by their gradients. All it remembers
/// between updates is in its state tensors.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// Enqueues the update. What its gate decides is not known yet.
  virtual Status Update(Context& context, const UpdateArgs& args) = 0;

  /// Whether Update enqueues the same work for each step, where Context::numbers says all that
  /// changes: so that it can be recorded.
  virtual bool repeats() const { return false; }

  /// The update that was enqueued last has been applied.
  virtual void OnApplied() {}

  /// For checkpoints: writing into the views restores the optimizer. Names are the rule's, the
  /// parameter's and what it is: "adamw/transformer.wte.weight/first_moment".
  virtual std::vector<NamedTensor> StateTensors() const = 0;

  /// Averages that stand for the parameters in evaluation and export, for rules whose result they
  /// are. Only after the first update. Overwrites the gradients of bf16 parameters: see
  /// ExchangeableAverage.
  virtual Result<std::vector<AveragedParameter>> Averages(Context&) const {
    return std::vector<AveragedParameter>();
  }
};

/// The optimizer of `spec`, its state zero. `parameters`, allocated with gradients, outlives it;
/// those without a gradient are left alone. `compute`: the type of operands of products, for rules
/// that multiply matrices. `parts`: what of each trained parameter this rank updates, where it is
/// not all; only for rules that update numbers one by one (UpdatesElementwise). kInvalid when a
/// group of `spec` names no parameter.
Result<std::unique_ptr<Optimizer>> NewOptimizer(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet* parameters, DType compute,
                                                std::span<const ParameterPart> parts = {});

}  // namespace weft::engine
