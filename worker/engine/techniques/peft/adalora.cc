#include "worker/engine/techniques/peft/adalora.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "common/model/parameter_list.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/linear/linear.h"
#include "worker/engine/nn/whole_values.h"
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

AdaLora::Scored AdaLora::NewScored(int64_t parameter) {
  const ParameterSet& parameters = *parts_.parameters;
  const std::string& name = parameters[parameter].name;
  Scored tensor{.parameter = parameter};
  const auto add = [&](const ParameterPart& part) {
    Piece& piece = tensor.pieces.emplace_back(Piece{.part = part});
    piece.sensitivity = scores_.Add("adalora/" + name + "/sensitivity", parameters, part);
    piece.uncertainty = scores_.Add("adalora/" + name + "/uncertainty", parameters, part);
  };
  if (!parts_.shards_updates) add(WholePart(parameters, parameter));
  for (const UpdatedParameters& updated : parts_.updated) {
    for (const ParameterPart& part : updated.parts) {
      if (part.index == parameter) add(part);
    }
  }
  return tensor;
}

Status AdaLora::OnTraining(const TrainingParts& parts) {
  parts_ = parts;
  const ParameterSet& parameters = *parts.parameters;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    // Each adapter begins with A; B and E follow.
    const bool first =
        parameters[i].adapter == AdapterSide::kInput && parameters[i].shape.rank == 2;
    if (!first) continue;
    Adapter adapter{.a = NewScored(i), .b = NewScored(i + 1), .diagonal = NewScored(i + 2)};
    adapter.kept.assign(static_cast<size_t>(parameters[i].shape[0]), 1);
    adapters_.push_back(std::move(adapter));
  }
  for (const ParameterInfo& each : ParametersOf(model_)) {
    if (each.adapter != AdapterSide::kInput || !each.matrix()) continue;
    if (!adapters_.empty() && each.name == parameters[adapters_.front().a.parameter].name) {
      adapters_before_ = all_adapters_;
    }
    ++all_adapters_;
  }
  Context state = StateContext();
  return scores_.Allocate(state);
}

Result<std::vector<float>> AdaLora::ProductOverSide(Context& context, const TensorView& p,
                                                    bool of_rows) {
  const int64_t rank = p.shape[of_rows ? 0 : 1];
  WEFT_ASSIGN_OR_RETURN(const Tensor product, NewTensor(context, {rank, rank}));
  if (of_rows) {
    WEFT_ASSIGN_OR_RETURN(const auto operand, kernels::NewPackedWeight(context.stream.device, rank,
                                                                       p.shape[1], DType::kF32));
    WEFT_RETURN_IF_ERROR(operand->Pack(context.stream, p));
    WEFT_RETURN_IF_ERROR(
        kernels::LinearForward(context.stream, {.x = p, .weight = operand.get(), .y = product}));
  } else {
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = p, .dy = p, .dweight = product, .accumulate = false}));
  }
  std::vector<float> values(static_cast<size_t>(rank * rank));
  WEFT_RETURN_IF_ERROR(Download(context.stream, product, values.data()));
  return values;
}

Status AdaLora::ForEachFactor(
    Context& context,
    const std::function<Status(const Scored& tensor, bool of_rows, int64_t index)>& fn) const {
  const ParameterSet& parameters = *parts_.parameters;
  const auto of_unit = [&](int64_t unit) -> Status {
    int64_t index = 2 * adapters_before_;
    for (const Adapter& adapter : adapters_) {
      if (parameters[adapter.a.parameter].unit == unit) {
        WEFT_RETURN_IF_ERROR(fn(adapter.a, /*of_rows=*/true, index));
        WEFT_RETURN_IF_ERROR(fn(adapter.b, /*of_rows=*/false, index + 1));
      }
      index += 2;
    }
    return OkStatus();
  };
  return ForEachUnit(context, parameters, of_unit, Pass::kTrained);
}

// Tensor-parallel ranks that have parts of the side of a factor add up their products.
Result<std::vector<double>> AdaLora::ProductsOverSides(Context& context) const {
  const ParameterSet& parameters = *parts_.parameters;
  const int64_t numbers = spec_.init_r * spec_.init_r;
  std::vector<double> products(static_cast<size_t>(2 * all_adapters_ * numbers), 0.0);
  WEFT_RETURN_IF_ERROR(
      ForEachFactor(context, [&](const Scored& tensor, bool of_rows, int64_t index) -> Status {
        const bool counts = !parameters.sharded() || parameters.Counts(tensor.parameter);
        if (!counts) return OkStatus();
        WEFT_ASSIGN_OR_RETURN(const Tensor p, InF32(context, parameters.value(tensor.parameter)));
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> product,
                              ProductOverSide(context, p, of_rows));
        std::copy(product.begin(), product.end(), products.begin() + index * numbers);
        return OkStatus();
      }));
  if (parameters.sharded()) WEFT_RETURN_IF_ERROR(parts_.sum_over_replica(products));
  return products;
}

// The gradient of the norm of M = P Pᵀ - I is 2 M P / ‖M‖.
Status AdaLora::AddOrthogonality(Context& context, const Scored& tensor, bool of_rows,
                                 std::span<const double> product) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor p, InF32(context, parts_.parameters->value(tensor.parameter)));
  std::vector<float> m(product.begin(), product.end());
  const int64_t rank = p.shape()[of_rows ? 0 : 1];
  double squares = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    if (i % static_cast<size_t>(rank + 1) == 0) m[i] -= 1;
    squares += static_cast<double>(m[i]) * m[i];
  }
  if (squares == 0) return OkStatus();
  const auto factors = 2 * static_cast<double>(all_adapters_);
  const auto scale = static_cast<float>(2 * spec_.orth_reg_weight / factors / std::sqrt(squares));
  for (float& each : m) each *= scale;
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, NewTensor(context, {rank, rank}));
  WEFT_RETURN_IF_ERROR(Upload(context.stream, m.data(), scaled));
  const Tensor& weight = of_rows ? p : scaled;
  WEFT_ASSIGN_OR_RETURN(const auto operand,
                        kernels::NewPackedWeight(context.stream.device, weight.shape()[0],
                                                 weight.shape()[1], DType::kF32));
  WEFT_RETURN_IF_ERROR(operand->Pack(context.stream, weight));
  WEFT_ASSIGN_OR_RETURN(const Tensor gradient, NewTensor(context, p.shape()));
  WEFT_RETURN_IF_ERROR(
      of_rows ? kernels::LinearBackwardInput(
                    context.stream, {.dy = scaled, .weight = operand.get(), .dx = gradient})
              : kernels::LinearForward(context.stream,
                                       {.x = p, .weight = operand.get(), .y = gradient}));
  for (const Piece& piece : tensor.pieces) {
    const ParameterPart& part = piece.part;
    if (part.count() == 0) continue;
    const TensorView own =
        part.whole ? gradient.view() : gradient.Elements(part.first, part.count()).view();
    WEFT_RETURN_IF_ERROR(
        kernels::AddScaled(context.stream, {.x = own, .y = part.gradient, .keep = 1}));
  }
  return OkStatus();
}

Status AdaLora::OnGradients(Context& state, int64_t step) {
  step_ = step;
  if (spec_.orth_reg_weight == 0) return OkStatus();
  ProfileScope scope(state.profiler, "orthogonality");
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> products, ProductsOverSides(state));
  const auto numbers = static_cast<size_t>(spec_.init_r * spec_.init_r);
  return ForEachFactor(state, [&](const Scored& tensor, bool of_rows, int64_t index) {
    const size_t first = static_cast<size_t>(index) * numbers;
    return AddOrthogonality(state, tensor, of_rows, std::span(products).subspan(first, numbers));
  });
}

Status AdaLora::Score(Context& context, const Scored& tensor, float clip) const {
  for (const Piece& piece : tensor.pieces) {
    const ParameterPart& part = piece.part;
    if (part.count() == 0) continue;
    WEFT_ASSIGN_OR_RETURN(const Tensor now, InF32(context, part.value));
    WEFT_RETURN_IF_ERROR(kernels::Hadamard(
        context.stream, {.a = now, .b = part.gradient, .y = now, .factor = clip}));
    WEFT_RETURN_IF_ERROR(TakeMagnitudes(context, now));
    const TensorView mean = scores_[piece.sensitivity];
    WEFT_RETURN_IF_ERROR(AddToMean(context, now, mean, spec_.beta1));
    WEFT_RETURN_IF_ERROR(kernels::AddScaled(context.stream, {.x = mean, .y = now, .factor = -1}));
    WEFT_RETURN_IF_ERROR(TakeMagnitudes(context, now));
    WEFT_RETURN_IF_ERROR(AddToMean(context, now, scores_[piece.uncertainty], spec_.beta2));
  }
  return OkStatus();
}

// The score of a number is its sensitivity times its uncertainty.
Status AdaLora::AddScores(Context& context, const Scored& tensor, bool of_rows, int64_t length,
                          double weight, std::span<double> ranks) const {
  for (const Piece& piece : tensor.pieces) {
    if (!parts_.parameters->Counts(piece.part)) continue;
    const auto count = static_cast<size_t>(piece.part.count());
    std::vector<float> sensitivity(count), uncertainty(count);
    if (count == 0) continue;
    WEFT_RETURN_IF_ERROR(Download(context.stream, scores_[piece.sensitivity], sensitivity.data()));
    WEFT_RETURN_IF_ERROR(Download(context.stream, scores_[piece.uncertainty], uncertainty.data()));
    for (size_t i = 0; i < count; ++i) {
      const int64_t at = piece.part.first + static_cast<int64_t>(i);
      ranks[static_cast<size_t>(of_rows ? at / length : at % length)] +=
          weight * sensitivity[i] * uncertainty[i];
    }
  }
  return OkStatus();
}

// That of a rank is the score of its number on the diagonal, and the mean ones of its row of A and
// of its column of B.
Result<std::vector<double>> AdaLora::ScoresOfRanks(Context& context) const {
  const ParameterSet& parameters = *parts_.parameters;
  const auto rank = static_cast<size_t>(spec_.init_r);
  std::vector<double> scores(static_cast<size_t>(all_adapters_) * rank, 0.0);
  auto own = std::span(scores).subspan(static_cast<size_t>(adapters_before_) * rank);
  for (const Adapter& adapter : adapters_) {
    const Parameter& a = parameters[adapter.a.parameter];
    const Parameter& b = parameters[adapter.b.parameter];
    const double of_a = 1 / static_cast<double>(a.logical_shape()[1]);
    const double of_b = 1 / static_cast<double>(b.logical_shape()[0]);
    const std::span<double> ranks = own.first(rank);
    WEFT_RETURN_IF_ERROR(AddScores(context, adapter.diagonal, true, 1, 1, ranks));
    WEFT_RETURN_IF_ERROR(AddScores(context, adapter.a, true, a.shape[1], of_a, ranks));
    WEFT_RETURN_IF_ERROR(AddScores(context, adapter.b, false, spec_.init_r, of_b, ranks));
    own = own.subspan(rank);
  }
  WEFT_RETURN_IF_ERROR(parts_.sum_scalars(scores));
  WEFT_RETURN_IF_ERROR(parts_.sum_over_replica(scores));
  return scores;
}

Status AdaLora::Choose(Context& context, int64_t budget) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<double> scores, ScoresOfRanks(context));
  const int64_t dropped = std::ssize(scores) - budget;
  if (dropped <= 0) return OkStatus();
  std::vector<double> sorted = scores;
  const auto last = sorted.begin() + (dropped - 1);
  std::nth_element(sorted.begin(), last, sorted.end());
  auto at = static_cast<size_t>(adapters_before_ * spec_.init_r);
  for (Adapter& adapter : adapters_) {
    for (uint8_t& kept : adapter.kept) kept = scores[at++] > *last ? 1 : 0;
  }
  return OkStatus();
}

// Masks the part of a sharded diagonal that this rank has.
Status AdaLora::Mask(Context& context) const {
  for (const Adapter& adapter : adapters_) {
    const auto [first, diagonal] = parts_.parameters->held_value(adapter.diagonal.parameter);
    if (diagonal.shape.Elements() == 0) continue;
    WEFT_ASSIGN_OR_RETURN(const Tensor mask,
                          Tensor::New(context, Component::kWorkspace, DType::kU8, diagonal.shape));
    WEFT_RETURN_IF_ERROR(Upload(context.stream, adapter.kept.data() + first, mask));
    WEFT_RETURN_IF_ERROR(kernels::ApplyMask(context.stream, {.x = diagonal, .mask = mask}));
  }
  return OkStatus();
}

// A step that is skipped does neither: the last choice is made after it.
Status AdaLora::OnUpdated() {
  Context context = StateContext();
  ProfileScope scope(context.profiler, "choose ranks");
  const int64_t all = all_adapters_ * spec_.init_r;
  const int64_t kept = all_adapters_ * spec_.target_r;
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
                       .view = {adapter.kept.data(), DType::kU8, {std::ssize(adapter.kept)}},
                       .parameter = adapter.diagonal.parameter});
  }
  tensors.push_back({.name = "adalora/ended", .view = {&ended_, DType::kI32, {1}}});
  return tensors;
}

}  // namespace weft::engine
