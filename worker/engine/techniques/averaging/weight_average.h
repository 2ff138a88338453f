#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/spec/train_spec.h"
#include "common/status.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/optim/averaged_parameter.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Averages of the trained parameters over time, by train.averaging:
///   ema: average = decay average + (1 - decay) parameter (Polyak and Juditsky 1992), from the
///     first value on;
///   lawa: the mean of the last `window` snapshots (Kaddour 2022, arXiv 2209.14981).
/// Either takes the parameters after every `every_steps`-th update. Its state tensors are
/// "ema/<parameter>" or "lawa/<slot>/<parameter>".
class WeightAverage {
 public:
  /// `spec` asks for one. `parameters` outlives it. `parts`: of what this rank keeps the
  /// averages, where it is not all.
  static Result<std::unique_ptr<WeightAverage>> New(Context& context, const AveragingSpec& spec,
                                                    const ParameterSet& parameters,
                                                    std::span<const ParameterPart> parts = {});

  /// The parameters have been updated `updates` times. Overwrites the gradients of bf16 ones.
  Status Observe(Context& context, int64_t updates);

  /// What to exchange for an evaluation after `updates` updates; empty while there is no average.
  /// The mean of lawa is made on the host, into the gradients.
  Result<std::vector<AveragedParameter>> Averages(Context& context, int64_t updates);

  std::vector<NamedTensor> StateTensors() const { return state_.Named(); }

 private:
  struct Entry {
    ParameterPart part;
    std::vector<TensorView> slots;
  };

  explicit WeightAverage(const AveragingSpec& spec) : spec_(spec) {}
  Result<const float*> InF32(Context& context, const Entry& entry) const;
  Status MeanOfSlots(Context& context, const Entry& entry, int64_t taken,
                     const TensorView& mean) const;

  AveragingSpec spec_;
  OptimizerState state_;
  std::vector<Entry> entries_;
};

}  // namespace weft::engine
