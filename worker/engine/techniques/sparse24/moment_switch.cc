#include "worker/engine/techniques/sparse24/moment_switch.h"

#include <algorithm>
#include <cmath>

#include "worker/engine/techniques/sparse24/sparse24_cost.h"

namespace weft::engine {
namespace {

// That share of the steps, in whole steps.
float StepAfter(double share, int64_t steps) {
  return static_cast<float>(std::llround(share * static_cast<double>(steps)));
}

}  // namespace

Status MomentSwitch::OnTraining(const TrainingParts& parts) {
  parts_ = parts;
  state_[kSwitchStep] = StepAfter(share_ > 0 ? share_ : kLastSwitchShare, parts.job->train.steps);
  return OkStatus();
}

Status MomentSwitch::OnStepEnd(const FinishedStep& step) {
  if (share_ > 0 || Switched(step.step + 1) || !step.applied) return OkStatus();
  if (weights_ == 0) {
    std::array<double, 1> weights = {0};
    const ParameterSet& parameters = *parts_.parameters;
    for (const int64_t i : TrainedParameters(parameters)) {
      if (parameters.Counts(i)) weights[0] += static_cast<double>(parameters[i].shape.Elements());
    }
    WEFT_RETURN_IF_ERROR(parts_.sum_over_replica(weights));
    weights_ = weights[0];
  }
  const OptimizerSpec& adam = parts_.job->optimizer;
  double squares = step.gradient_squares / (step.loss_scale * step.loss_scale);
  const double limit = parts_.job->train.gradient_clip_norm;
  if (limit > 0) squares = std::min(squares, limit * limit);
  const double change = (1 - adam.beta2) * (squares - static_cast<double>(state_[kMoment]));
  state_[kMoment] += static_cast<float>(change);
  state_[kChange] += static_cast<float>(std::fabs(change));
  state_[kCount] += 1;
  if (state_[kCount] < std::floor(1 / (1 - adam.beta2))) return OkStatus();
  const double mean = static_cast<double>(state_[kChange]) / state_[kCount] / weights_;
  state_[kChange] = state_[kCount] = 0;
  // The next step is packed already.
  const int64_t next = step.step + 2;
  if (mean < adam.epsilon &&
      next >= static_cast<int64_t>(StepAfter(kFirstSwitchShare, parts_.job->train.steps))) {
    state_[kSwitchStep] = static_cast<float>(next);
  }
  return OkStatus();
}

std::vector<NamedTensor> MomentSwitch::StateTensors() {
  return {{.name = "sparse24/moment_switch", .view = {state_.data(), DType::kF32, {kNumbers}}}};
}

}  // namespace weft::engine
