#include "worker/engine/optim/schedule_free.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/elementwise.h"

namespace weft::engine {

Result<std::unique_ptr<Optimizer>> ScheduleFree::New(Context& context, const OptimizerSpec& spec,
                                                     const ParameterSet& parameters,
                                                     const std::vector<ParameterRule>& rules,
                                                     std::span<const ParameterPart> parts) {
  std::unique_ptr<ScheduleFree> optimizer(new ScheduleFree(spec, parts));
  OptimizerState& state = optimizer->state_;
  for (const ParameterPart& part : parts) state.Add(spec, parameters, part);
  WEFT_RETURN_IF_ERROR(state.Allocate(context));
  size_t next = 0;
  for (const ParameterPart& part : parts) {
    kernels::UpdateTensor tensor =
        UpdateTensorOf(parameters, part, rules[static_cast<size_t>(part.index)]);
    for (kernels::UpdateState& kept : tensor.state) kept = state[next++];
    optimizer->tensors_.push_back(tensor);
  }
  return std::unique_ptr<Optimizer>(std::move(optimizer));
}

// Average and base begin where the parameters do.
Status ScheduleFree::Start(Context& context) {
  for (size_t k = 0; k < tensors_.size(); ++k) {
    const TensorView& parameter = parts_[k].value;
    if (parts_[k].count() == 0) continue;
    for (size_t s : {0, 1}) {
      const kernels::UpdateState& state = tensors_[k].state[s];
      WEFT_RETURN_IF_ERROR(
          kernels::Cast(context.stream,
                        {parameter, {state.data, state.dtype, parameter.shape, parameter.device}}));
    }
  }
  return OkStatus();
}

// The rate's square, as a share of the sum so far.
double ScheduleFree::AverageWeight(const UpdateArgs& args) {
  const double rate =
      args.learning_rate * std::sqrt(1 - std::pow(spec_.beta2, static_cast<double>(args.update)));
  const double sum =
      static_cast<double>(weight_sum_[0]) + static_cast<double>(weight_sum_[1]) + rate * rate;
  next_weight_sum_[0] = static_cast<float>(sum);
  next_weight_sum_[1] = static_cast<float>(sum - static_cast<double>(next_weight_sum_[0]));
  return sum > 0 ? std::min(1.0, rate * rate / sum) : 1.0;
}

Status ScheduleFree::Update(Context& context, const UpdateArgs& args) {
  if (args.update == 1) WEFT_RETURN_IF_ERROR(Start(context));
  return kernels::ScheduleFreeAdamW(context.stream,
                                    {.update = InputsOf(context, args, tensors_),
                                     .beta1 = static_cast<float>(spec_.beta1),
                                     .beta2 = static_cast<float>(spec_.beta2),
                                     .epsilon = static_cast<float>(spec_.epsilon),
                                     .step = args.update,
                                     .average_weight = static_cast<float>(AverageWeight(args))});
}

std::vector<NamedTensor> ScheduleFree::StateTensors() const {
  std::vector<NamedTensor> tensors = state_.Named();
  // Who restores writes into it.
  auto* sum = const_cast<float*>(weight_sum_.data());
  tensors.push_back({.name = spec_.name + "/weight_sum", .view = {sum, DType::kF32, {2}}});
  return tensors;
}

Result<std::vector<AveragedParameter>> ScheduleFree::Averages(Context& context) const {
  std::vector<AveragedParameter> averages;
  for (size_t k = 0; k < tensors_.size(); ++k) {
    WEFT_ASSIGN_OR_RETURN(const AveragedParameter average,
                          ExchangeableAverage(context, parts_[k], tensors_[k].state[0].f32()));
    averages.push_back(average);
  }
  return averages;
}

}  // namespace weft::engine
