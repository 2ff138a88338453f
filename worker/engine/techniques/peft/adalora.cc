#include "worker/engine/techniques/peft/adalora.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/linear/linear.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

Result<Tensor> NewTensor(Context& context, const Shape& shape) {
  return Tensor::New(context, Component::kWorkspace, DType::kF32, shape);
}

/// In f32: itself, or a copy.
Result<Tensor> InF32(Context& context, const TensorView& values) {
  WEFT_ASSIGN_OR_RETURN(Tensor copy, NewTensor(context, values.shape));
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {values, copy}));
  return copy;
}

/// Replaces numbers by their magnitudes.
Status TakeMagnitudes(Context& context, const Tensor& values) {
  WEFT_ASSIGN_OR_RETURN(const Tensor signs, NewTensor(context, values.shape()));
  WEFT_RETURN_IF_ERROR(Clear(context.stream, signs.view()));
  WEFT_RETURN_IF_ERROR(kernels::AddSign(context.stream, {.x = values, .y = signs}));
  return kernels::Hadamard(context.stream, {.a = values, .b = signs, .y = values});
}

/// mean = decay mean + (1 - decay) x.
Status AddToMean(Context& context, const Tensor& x, const TensorView& mean, double decay) {
  return kernels::AddScaled(context.stream, {.x = x,
                                             .y = mean,
                                             .factor = static_cast<float>(1 - decay),
                                             .keep = static_cast<float>(decay)});
}

}  // namespace

int64_t RankBudget(const AdaLoraSpec& spec, int64_t step, int64_t steps, int64_t all,
                   int64_t kept) {
  if (step <= spec.tinit) return all;
  const auto declining = static_cast<double>(steps - spec.tfinal - spec.tinit);
  const double left = std::max(0.0, 1 - static_cast<double>(step - spec.tinit) / declining);
  return static_cast<int64_t>(static_cast<double>(all - kept) * std::pow(left, 3) +
                              static_cast<double>(kept));
}

Status AdaLora::OnTraining(const TrainingParts& parts) {
  parts_ = parts;
  const ParameterSet& parameters = *parts.parameters;
  const auto scored = [&](int64_t index) {
    const std::string& name = parameters[index].name;
    const ParameterPart whole = WholePart(parameters, index);
    Scored tensor{.parameter = index};
    tensor.sensitivity = scores_.Add("adalora/" + name + "/sensitivity", parameters, whole);
    tensor.uncertainty = scores_.Add("adalora/" + name + "/uncertainty", parameters, whole);
    return tensor;
  };
  for (int64_t i = 0; i < parameters.size(); ++i) {
    // Each adapter begins with A; B and E follow.
    const bool first =
        parameters[i].adapter == AdapterSide::kInput && parameters[i].shape.rank == 2;
    if (!first) continue;
    Adapter adapter{.a = scored(i), .b = scored(i + 1), .diagonal = scored(i + 2)};
    adapter.kept.assign(static_cast<size_t>(parameters[i].shape[0]), 1);
    adapters_.push_back(std::move(adapter));
  }
  return scores_.Allocate(*parts.context);
}

Result<std::vector<float>> AdaLora::ProductOverSides(Context& context, const TensorView& x,
                                                     const TensorView& y, bool of_rows) {
  const int64_t rank = x.shape[of_rows ? 0 : 1];
  WEFT_ASSIGN_OR_RETURN(const Tensor product, NewTensor(context, {rank, rank}));
  if (of_rows) {
    WEFT_ASSIGN_OR_RETURN(const auto operand, kernels::NewPackedWeight(context.stream.device, rank,
                                                                       y.shape[1], DType::kF32));
    WEFT_RETURN_IF_ERROR(operand->Pack(context.stream, y));
    WEFT_RETURN_IF_ERROR(
        kernels::LinearForward(context.stream, {.x = x, .weight = operand.get(), .y = product}));
  } else {
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = y, .dy = x, .dweight = product, .accumulate = false}));
  }
  std::vector<float> values(static_cast<size_t>(rank * rank));
  WEFT_RETURN_IF_ERROR(Download(context.stream, product, values.data()));
  return values;
}

// The gradient of the norm of M = P Pᵀ - I is 2 M P / ‖M‖.
Status AdaLora::AddOrthogonality(Context& context, int64_t factor, bool of_rows) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor p, InF32(context, parts_.parameters->value(factor)));
  WEFT_ASSIGN_OR_RETURN(std::vector<float> m, ProductOverSides(context, p, p, of_rows));
  const int64_t rank = p.shape()[of_rows ? 0 : 1];
  double squares = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    if (i % static_cast<size_t>(rank + 1) == 0) m[i] -= 1;
    squares += static_cast<double>(m[i]) * m[i];
  }
  if (squares == 0) return OkStatus();
  const auto factors = 2 * static_cast<double>(adapters_.size());
  const auto scale = static_cast<float>(2 * spec_.orth_reg_weight / factors / std::sqrt(squares));
  for (float& each : m) each *= scale;
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, NewTensor(context, {rank, rank}));
  WEFT_RETURN_IF_ERROR(Upload(context.stream, m.data(), scaled));
  const TensorView gradient = parts_.parameters->gradient(factor);
  const Tensor& weight = of_rows ? p : scaled;
  WEFT_ASSIGN_OR_RETURN(const auto operand,
                        kernels::NewPackedWeight(context.stream.device, weight.shape()[0],
                                                 weight.shape()[1], DType::kF32));
  WEFT_RETURN_IF_ERROR(operand->Pack(context.stream, weight));
  if (of_rows) {
    return kernels::LinearBackwardInput(
        context.stream,
        {.dy = scaled, .weight = operand.get(), .dx = gradient, .accumulate = true});
  }
  return kernels::LinearForward(
      context.stream, {.x = p, .weight = operand.get(), .y = gradient, .accumulate = true});
}

Status AdaLora::OnGradients(Context& state, int64_t step) {
  step_ = step;
  if (spec_.orth_reg_weight == 0) return OkStatus();
  ProfileScope scope(state.profiler, "orthogonality");
  for (const Adapter& adapter : adapters_) {
    WEFT_RETURN_IF_ERROR(AddOrthogonality(state, adapter.a.parameter, /*of_rows=*/true));
    WEFT_RETURN_IF_ERROR(AddOrthogonality(state, adapter.b.parameter, /*of_rows=*/false));
  }
  return OkStatus();
}

Status AdaLora::Score(Context& context, const Scored& tensor, float clip) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor now,
                        InF32(context, parts_.parameters->value(tensor.parameter)));
  WEFT_RETURN_IF_ERROR(kernels::Hadamard(
      context.stream,
      {.a = now, .b = parts_.parameters->gradient(tensor.parameter), .y = now, .factor = clip}));
  WEFT_RETURN_IF_ERROR(TakeMagnitudes(context, now));
  const TensorView mean = scores_[tensor.sensitivity];
  WEFT_RETURN_IF_ERROR(AddToMean(context, now, mean, spec_.beta1));
  WEFT_RETURN_IF_ERROR(kernels::AddScaled(context.stream, {.x = mean, .y = now, .factor = -1}));
  WEFT_RETURN_IF_ERROR(TakeMagnitudes(context, now));
  return AddToMean(context, now, scores_[tensor.uncertainty], spec_.beta2);
}

// The score of a number is its sensitivity times its uncertainty; that of a rank the score of its
// number on the diagonal, and the mean ones of its row of A and of its column of B.
Result<std::vector<double>> AdaLora::ScoresOfRanks(Context& context) const {
  std::vector<double> scores;
  for (const Adapter& adapter : adapters_) {
    const auto view = [&](size_t index) { return scores_[index]; };
    const TensorView a = view(adapter.a.sensitivity), b = view(adapter.b.sensitivity);
    WEFT_ASSIGN_OR_RETURN(
        const std::vector<float> of_a,
        ProductOverSides(context, a, view(adapter.a.uncertainty), /*of_rows=*/true));
    WEFT_ASSIGN_OR_RETURN(
        const std::vector<float> of_b,
        ProductOverSides(context, b, view(adapter.b.uncertainty), /*of_rows=*/false));
    const size_t rank = adapter.kept.size();
    std::vector<float> sensitivity(rank), uncertainty(rank);
    WEFT_RETURN_IF_ERROR(
        Download(context.stream, view(adapter.diagonal.sensitivity), sensitivity.data()));
    WEFT_RETURN_IF_ERROR(
        Download(context.stream, view(adapter.diagonal.uncertainty), uncertainty.data()));
    for (size_t k = 0; k < rank; ++k) {
      const size_t at = k * (rank + 1);
      scores.push_back(static_cast<double>(sensitivity[k]) * uncertainty[k] +
                       of_a[at] / static_cast<double>(a.shape[1]) +
                       of_b[at] / static_cast<double>(b.shape[0]));
    }
  }
  WEFT_RETURN_IF_ERROR(parts_.sum_scalars(scores));
  return scores;
}

Status AdaLora::Choose(Context& context, int64_t budget) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> scores, ScoresOfRanks(context));
  const int64_t dropped = std::ssize(scores) - budget;
  if (dropped <= 0) return OkStatus();
  std::vector<double> sorted = scores;
  const auto last = sorted.begin() + (dropped - 1);
  std::nth_element(sorted.begin(), last, sorted.end());
  size_t at = 0;
  for (Adapter& adapter : adapters_) {
    for (uint8_t& kept : adapter.kept) kept = scores[at++] > *last ? 1 : 0;
  }
  return OkStatus();
}

Status AdaLora::Mask(Context& context) const {
  for (const Adapter& adapter : adapters_) {
    const TensorView diagonal = parts_.parameters->value(adapter.diagonal.parameter);
    WEFT_ASSIGN_OR_RETURN(const Tensor mask,
                          Tensor::New(context, Component::kWorkspace, DType::kU8, diagonal.shape));
    WEFT_RETURN_IF_ERROR(Upload(context.stream, adapter.kept.data(), mask));
    WEFT_RETURN_IF_ERROR(kernels::ApplyMask(context.stream, {.x = diagonal, .mask = mask}));
  }
  return OkStatus();
}

// A step that is skipped does neither: the last choice is made after it.
Status AdaLora::OnUpdated() {
  Context& context = *parts_.context;
  ProfileScope scope(context.profiler, "choose ranks");
  const int64_t all = std::ssize(adapters_) * spec_.init_r;
  const int64_t kept = std::ssize(adapters_) * spec_.target_r;
  if (step_ < LastChoice()) {
    float clip = 1;
    if (gate_.factor != nullptr) {
      const TensorView factor(const_cast<float*>(gate_.factor), DType::kF32, {1},
                              context.stream.device);
      WEFT_RETURN_IF_ERROR(Download(context.stream, factor, &clip));
    }
    for (const Adapter& adapter : adapters_) {
      for (const Scored* tensor : {&adapter.a, &adapter.b, &adapter.diagonal}) {
        WEFT_RETURN_IF_ERROR(Score(context, *tensor, clip));
      }
    }
    if (step_ <= spec_.tinit || step_ % spec_.delta_t != 0) return OkStatus();
    WEFT_RETURN_IF_ERROR(
        Choose(context, RankBudget(spec_, step_, parts_.job->train.steps, all, kept)));
  } else if (ended_ == 0) {
    WEFT_RETURN_IF_ERROR(Choose(context, kept));
    ended_ = 1;
  }
  return Mask(context);
}

std::vector<NamedTensor> AdaLora::StateTensors() {
  std::vector<NamedTensor> tensors = scores_.Named();
  for (Adapter& adapter : adapters_) {
    const std::string& name = (*parts_.parameters)[adapter.diagonal.parameter].name;
    tensors.push_back({.name = "adalora/" + name + "/kept",
                       .view = {adapter.kept.data(), DType::kU8, {std::ssize(adapter.kept)}}});
  }
  tensors.push_back({.name = "adalora/ended", .view = {&ended_, DType::kI32, {1}}});
  return tensors;
}

}  // namespace weft::engine
