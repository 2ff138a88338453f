#include "worker/engine/optim/adamw.h"

#include <cstring>

namespace weft::engine {

Result<std::unique_ptr<Optimizer>> AdamW::New(Context& context, const OptimizerSpec& spec,
                                              const ParameterSet* parameters) {
  std::unique_ptr<AdamW> adamw(new AdamW(spec, parameters));
  for (Tensor* moments : {&adamw->first_moments_, &adamw->second_moments_}) {
    WEFT_ASSIGN_OR_RETURN(*moments, Tensor::New(context, Component::kOptimizer, DType::kF32,
                                                {parameters->GradientCount()}));
    std::memset(moments->As<float>(), 0, moments->Bytes());
  }
  for (int64_t i = 0; i < parameters->size(); ++i) {
    const Parameter& parameter = (*parameters)[i];
    if (!parameter.trainable()) continue;
    adamw->trained_.push_back(i);
    adamw->tensors_.push_back(
        {.parameter = parameters->value(i).As<float>(),
         .gradient = parameters->gradient(i).As<float>(),
         .first_moment = adamw->first_moments_.As<float>() + parameter.gradient_offset,
         .second_moment = adamw->second_moments_.As<float>() + parameter.gradient_offset,
         .count = parameter.shape.Elements(),
         .weight_decay = parameter.decay() ? static_cast<float>(spec.weight_decay) : 0.0f});
  }
  return std::unique_ptr<Optimizer>(std::move(adamw));
}

Status AdamW::Update(Context& context, const UpdateArgs& args) {
  return kernels::AdamW(context.stream,
                        {.tensors = tensors_,
                         .learning_rate = static_cast<float>(args.learning_rate),
                         .beta1 = static_cast<float>(spec_.beta1),
                         .beta2 = static_cast<float>(spec_.beta2),
                         .epsilon = static_cast<float>(spec_.epsilon),
                         .step = args.update,
                         .gradient_scale = static_cast<float>(args.gradient_scale)});
}

std::vector<NamedTensor> AdamW::StateTensors() const {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < trained_.size(); ++i) {
    const Parameter& parameter = (*parameters_)[trained_[i]];
    const std::string prefix = "adamw/" + parameter.name;
    tensors.push_back(
        {prefix + "/first_moment",
         {tensors_[i].first_moment, DType::kF32, parameter.shape, first_moments_.view().device}});
    tensors.push_back(
        {prefix + "/second_moment",
         {tensors_[i].second_moment, DType::kF32, parameter.shape, second_moments_.view().device}});
  }
  return tensors;
}

}  // namespace weft::engine
