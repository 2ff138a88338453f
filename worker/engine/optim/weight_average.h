#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Exchanges parameters and averages, in parallel. Twice is as if never.
void Exchange(const std::vector<AveragedParameter>& averages);

/// How the tensor of a checkpoint is called that is an average of a parameter, or part of one.
struct AverageName {
  std::string prefix;
  std::string suffix;
};

/// The tensors whose mean stands for each trained parameter in a checkpoint of `job` after
/// `updates` updates; none when the parameters themselves count.
std::vector<AverageName> AverageNames(const JobSpec& job, int64_t updates);

/// Averages of the trained parameters over time, by train.averaging:
///   ema: average = decay average + (1 - decay) parameter (Polyak and Juditsky 1992), from the
///     first value on;
///   lawa: the mean of the last `window` snapshots (Kaddour 2022, arXiv 2209.14981).
/// Either takes the parameters after every `every_steps`-th update. Its state tensors are
/// "ema/<parameter>" or "lawa/<slot>/<parameter>".
class WeightAverage {
 public:
  /// Null when spec.kind is none.
  static Result<std::unique_ptr<WeightAverage>> New(Context& context, const AveragingSpec& spec,
                                                    const ParameterSet& parameters);

  /// The parameters have been updated `updates` times.
  Status Observe(Context& context, int64_t updates);

  /// What to exchange for an evaluation after `updates` updates; empty while there is no average.
  /// The mean of lawa is made in the gradients, which nothing needs between two steps.
  std::vector<AveragedParameter> Averages(int64_t updates);

  std::vector<NamedTensor> StateTensors() const { return state_.Named(); }

 private:
  struct Entry {
    float* parameter = nullptr;
    float* gradient = nullptr;
    int64_t count = 0;
    std::vector<float*> slots;
  };

  explicit WeightAverage(const AveragingSpec& spec) : spec_(spec) {}

  AveragingSpec spec_;
  OptimizerState state_;
  std::vector<Entry> entries_;
};

}  // namespace weft::engine
