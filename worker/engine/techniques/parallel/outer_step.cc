#include "worker/engine/techniques/parallel/outer_step.h"

#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/optimizer/optimizer.h"

namespace weft::engine {

OuterStep::OuterStep(const TrainSpec& train, const ParameterSet& parameters, GradientReducer* ranks)
    : learning_rate_(static_cast<float>(train.outer_learning_rate)),
      momentum_(static_cast<float>(train.outer_momentum)),
      parameters_(parameters),
      ranks_(ranks) {}

Result<std::unique_ptr<OuterStep>> OuterStep::New(Context& context, const TrainSpec& train,
                                                  const ParameterSet& parameters,
                                                  GradientReducer* ranks) {
  std::unique_ptr<OuterStep> outer(new OuterStep(train, parameters, ranks));
  const std::vector<ParameterPart> parts = TrainedParts(parameters);
  const auto add = [&](const char* name, MomentKind moment) {
    for (const ParameterPart& part : parts) {
      outer->state_.Add("outer/" + parameters[part.index].name + name, parameters, part, {},
                        moment);
    }
  };
  add("/value", MomentKind::kNone);
  add("/momentum", MomentKind::kFirst);
  WEFT_RETURN_IF_ERROR(outer->state_.Allocate(context));
  outer->entry_of_.resize(static_cast<size_t>(parameters.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    outer->entry_of_[static_cast<size_t>(parts[i].index)] = i;
    outer->entries_.push_back({parts[i], outer->state_[i], outer->state_[parts.size() + i]});
  }
  WEFT_RETURN_IF_ERROR(outer->Restored(context, false));
  return outer;
}

Status OuterStep::SumScalars(std::span<double> values) {
  return ranks_ == nullptr ? OkStatus() : ranks_->SumScalars(values);
}

TensorView OuterStep::value(int64_t parameter) const {
  return entries_[entry_of_[static_cast<size_t>(parameter)]].value;
}

Status OuterStep::Subtract(const Context& context) {
  std::vector<kernels::UpdateTensor> tensors;
  for (const Entry& e : entries_) {
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {e.part.value, e.part.gradient}));
    tensors.push_back({.parameter = e.part.gradient.As<float>(),
                       .gradient = e.value.As<float>(),
                       .state = {},
                       .count = e.part.count()});
  }
  // As a step of rate 1 along G; Update turns the sign.
  return kernels::Sgd(context.stream, {.update = {.tensors = tensors, .learning_rate = 1.0f}});
}

Status OuterStep::Sum(const Context& context, double weight) {
  if (ranks_ == nullptr) return OkStatus();
  if (weight != 1) {
    for (const Entry& e : entries_) {
      WEFT_RETURN_IF_ERROR(
          kernels::Scale(context.stream, {e.part.gradient, static_cast<float>(weight)}));
    }
  }
  WEFT_RETURN_IF_ERROR(ranks_->Begin(true));
  for (int64_t i = parameters_.size() - 1; i >= 0; --i) {
    if (parameters_[i].differentiated()) WEFT_RETURN_IF_ERROR(ranks_->OnGradientReady(i));
  }
  return ranks_->Finish();
}

Status OuterStep::Update(const Context& context) {
  std::vector<kernels::UpdateTensor> tensors;
  for (const Entry& e : entries_) {
    tensors.push_back({.parameter = e.value.As<float>(),
                       .gradient = e.part.gradient.As<float>(),
                       .state = {e.momentum},
                       .count = e.part.count()});
  }
  WEFT_RETURN_IF_ERROR(kernels::Sgd(
      context.stream, {.update = {.tensors = tensors,
                                  .learning_rate = learning_rate_,
                                  .gradient_scale = -1.0f / static_cast<float>(world_size())},
                       .momentum = momentum_,
                       .nesterov = momentum_ > 0}));
  for (const Entry& e : entries_) {
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {e.value, e.part.value}));
  }
  return OkStatus();
}

Status OuterStep::Restored(const Context& context, bool restored) {
  for (const Entry& e : entries_) {
    if (restored && !e.derived()) continue;
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {e.part.value, e.value}));
  }
  return OkStatus();
}

std::vector<NamedTensor> OuterStep::StateTensors() const {
  std::vector<NamedTensor> tensors = state_.Named();
  std::vector<NamedTensor> stored;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i < entries_.size() && entries_[i].derived()) continue;
    stored.push_back(std::move(tensors[i]));
  }
  return stored;
}

}  // namespace weft::engine
