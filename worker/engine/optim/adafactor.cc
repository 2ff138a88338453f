#include "worker/engine/optim/adafactor.h"

#include "worker/engine/optim/fused_optimizer.h"

namespace weft::engine {

Result<std::unique_ptr<Optimizer>> Adafactor::New(Context& context, const OptimizerSpec& spec,
                                                  const ParameterSet& parameters,
                                                  const std::vector<ParameterRule>& rules) {
  std::unique_ptr<Adafactor> adafactor(new Adafactor(spec));
  OptimizerState& state = adafactor->state_;
  const std::vector<int64_t> indices = TrainedParameters(parameters);
  for (int64_t i : indices) state.Add(spec, parameters, WholePart(parameters, i));
  WEFT_RETURN_IF_ERROR(state.Allocate(context));
  size_t next = 0;
  for (int64_t i : indices) {
    const kernels::UpdateTensor common =
        UpdateTensorOf(parameters, WholePart(parameters, i), rules[static_cast<size_t>(i)]);
    const Shape& shape = parameters[i].shape;
    kernels::AdafactorTensor tensor = {.parameter = common.parameter,
                                       .bf16_parameter = common.bf16_parameter,
                                       .gradient = common.gradient,
                                       .rows = shape.rank == 1 ? 1 : shape.Rows(),
                                       .columns = shape[-1],
                                       .learning_rate_scale = common.learning_rate_scale,
                                       .weight_decay = common.weight_decay,
                                       .rounding_site = common.rounding_site};
    if (shape.rank > 1) tensor.row_moment = state[next++].As<float>();
    tensor.column_moment = state[next++].As<float>();
    adafactor->tensors_.push_back(tensor);
  }
  return std::unique_ptr<Optimizer>(std::move(adafactor));
}

Status Adafactor::Update(Context& context, const UpdateArgs& args) {
  const kernels::UpdateInputs inputs = InputsOf(context, args, {});
  return kernels::Adafactor(context.stream,
                            {.tensors = tensors_,
                             .learning_rate = inputs.learning_rate.value,
                             .gradient_scale = inputs.gradient_scale,
                             .gradient_limit = inputs.gradient_limit,
                             .decay_exponent = static_cast<float>(spec_.decay_exponent),
                             .clip = static_cast<float>(spec_.update_clip),
                             .step = args.update,
                             .seed = inputs.seed,
                             .rounding_step = inputs.step.value,
                             .gate = inputs.gate});
}

}  // namespace weft::engine
