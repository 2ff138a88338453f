#include "worker/engine/techniques/peft/scaled_products.h"

#include <cmath>
#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/affine/affine.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// A vector as a matrix of one row.
TensorView AsRow(TensorView vector) {
  const int64_t count = vector.shape.Elements();
  vector.shape = {1, count};
  vector.row_stride = count;
  return vector;
}

/// Adds a gradient, or begins with it.
Status AddOrSet(Context& context, const TensorView& gradient, const TensorView& to,
                bool accumulate) {
  return kernels::AddScaled(context.stream,
                            {.x = gradient, .y = to, .keep = accumulate ? 1.0f : 0.0f});
}

Result<Tensor> NewZeros(Context& context, int64_t count) {
  WEFT_ASSIGN_OR_RETURN(Tensor zeros,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {count}));
  WEFT_RETURN_IF_ERROR(Clear(context.stream, zeros.view()));
  return zeros;
}

}  // namespace

ScaledResults::ScaledResults(const LinearLayer& layer, const PeftSpec& spec,
                             std::unique_ptr<WeightProducts> inner)
    : parameters_(layer.parameters),
      normalizes_(spec.use_dora),
      inner_(std::move(inner)),
      in_(layer.in_features),
      bias_(spec.use_dora && layer.adds_bias ? layer.bias : -1) {
  for (const OutputWeight& weight : layer.weights) {
    Output output{.column = out_, .columns = weight.rows, .weight = weight.first};
    if (weight.adapters > 0) {
      output.vector = weight.first_adapter + weight.adapters - 1;
      if (normalizes_) {
        output.scale = static_cast<float>(
            LoraScale(spec, (*layer.parameters)[weight.first_adapter].adapter_of));
      }
    }
    out_ += weight.rows;
    outputs_.push_back(std::move(output));
  }
}

TensorView ScaledResults::PartOf(const Tensor& vector, const Output& output) {
  return vector.Elements(output.column, output.columns).view();
}

Status ScaledResults::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(inner_->Pack(context, what));
  if (!normalizes_) return OkStatus();
  if (!inverse_lengths_) {
    WEFT_ASSIGN_OR_RETURN(inverse_lengths_,
                          Tensor::New(context, Component::kParameters, DType::kF32, {out_}));
  }
  for (Output& output : outputs_) {
    if (output.vector < 0) continue;
    WEFT_RETURN_IF_ERROR(MeasureRows(context, output));
  }
  return OkStatus();
}

Status ScaledResults::MeasureRows(Context& context, const Output& output) const {
  const Stream& stream = context.stream;
  const auto matrix = [&](int64_t rows, int64_t columns) {
    return Tensor::New(context, Component::kWorkspace, DType::kF32, {rows, columns});
  };
  const TensorView a = parameters_->value(output.vector - 2);
  const TensorView b = parameters_->value(output.vector - 1);
  WEFT_ASSIGN_OR_RETURN(const Tensor rows, matrix(a.shape[0], in_));
  WEFT_RETURN_IF_ERROR(kernels::AddScaled(stream, {.x = a, .y = rows, .keep = 0}));
  WEFT_ASSIGN_OR_RETURN(const auto packed,
                        kernels::NewPackedWeight(stream.device, a.shape[0], in_, DType::kF32));
  WEFT_RETURN_IF_ERROR(packed->Pack(stream, rows));
  WEFT_ASSIGN_OR_RETURN(const Tensor factor, matrix(output.columns, b.shape[1]));
  WEFT_RETURN_IF_ERROR(
      kernels::AddScaled(stream, {.x = b, .y = factor, .factor = output.scale, .keep = 0}));
  WEFT_ASSIGN_OR_RETURN(const Tensor sum, matrix(output.columns, in_));
  WEFT_RETURN_IF_ERROR(
      kernels::AddScaled(stream, {.x = parameters_->value(output.weight), .y = sum, .keep = 0}));
  WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
      stream, {.dy = factor, .weight = packed.get(), .dx = sum, .accumulate = true}));
  // The RMS norm gives 1 / RMS of each row: sqrt(in) times its inverse length.
  WEFT_ASSIGN_OR_RETURN(const Tensor normed, matrix(output.columns, in_));
  WEFT_ASSIGN_OR_RETURN(const Tensor ones,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {in_}));
  WEFT_RETURN_IF_ERROR(kernels::Fill(stream, {ones, 1}));
  const TensorView inverse = PartOf(inverse_lengths_, output);
  constexpr float kLeast = 1e-30f;  // of a row of zeros
  WEFT_RETURN_IF_ERROR(kernels::RmsNormForward(stream, {.residual = sum,
                                                        .delta = {},
                                                        .residual_out = {},
                                                        .weight = ones,
                                                        .epsilon = kLeast,
                                                        .y = normed,
                                                        .rrms = inverse}));
  return kernels::Scale(stream, {inverse, 1 / std::sqrt(static_cast<float>(in_))});
}

Result<Tensor> ScaledResults::Gains(Context& context) const {
  WEFT_ASSIGN_OR_RETURN(Tensor gains,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {out_}));
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {gains, 1}));
  for (const Output& output : outputs_) {
    if (output.vector < 0) continue;
    const TensorView vector = parameters_->operand(output.vector);
    const TensorView own = PartOf(gains, output);
    WEFT_RETURN_IF_ERROR(kernels::AffineForward(
        context.stream, {.x = AsRow(vector),
                         .scale = normalizes_ ? PartOf(inverse_lengths_, output) : TensorView(),
                         .shift = {},
                         .y = AsRow(own)}));
  }
  return gains;
}

Status ScaledResults::Forward(Context& context, const Tensor& x, const Tensor& y,
                              const GeluValue& active, const ForwardUse& use) const {
  WEFT_RETURN_IF_ERROR(inner_->Forward(context, x, y, {}, use));
  WEFT_ASSIGN_OR_RETURN(const Tensor gains, Gains(context));
  const TensorView bias =
      bias_ < 0 ? TensorView() : parameters_->stacked_operand(bias_, std::ssize(outputs_));
  WEFT_RETURN_IF_ERROR(
      kernels::AffineForward(context.stream, {.x = y, .scale = gains, .shift = bias, .y = y}));
  if (!active.value) return OkStatus();
  return kernels::GeluForward(context.stream, {y, active.value, active.form});
}

// `scales` of the operands are the gradient of what is scaled, `values` those of `inner`.
Result<OutputGradient> ScaledResults::Prepare(Context& context, Tensor dy,
                                              const GradientUse& use) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor gains, Gains(context));
  WEFT_ASSIGN_OR_RETURN(Tensor scaled,
                        Tensor::New(context, Component::kWorkspace, dy.dtype(), dy.shape()));
  WEFT_RETURN_IF_ERROR(
      kernels::AffineForward(context.stream, {.x = dy, .scale = gains, .shift = {}, .y = scaled}));
  WEFT_ASSIGN_OR_RETURN(OutputGradient inner, inner_->Prepare(context, scaled, use));
  OutputGradient prepared{std::move(dy)};
  if (use.for_input) prepared.for_input = {std::move(inner.for_input.values), scaled};
  if (use.for_weight) prepared.for_weight = {std::move(inner.for_weight.values), scaled};
  prepared.first_row = use.first_row;
  return prepared;
}

Status ScaledResults::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                    const Tensor& before, const GeluValue& active) const {
  const OutputGradient inner{dy.for_input.scales, {dy.for_input.values, {}}, {}, dy.first_row};
  return inner_->InputGradient(context, inner, dx, before, active);
}

Status ScaledResults::VectorGradient(Context& context, const Output& output, const Tensor& dgains,
                                     const WeightGradientTarget& to) const {
  const TensorView own = PartOf(dgains, output);
  if (normalizes_) {
    WEFT_RETURN_IF_ERROR(
        kernels::AffineForward(context.stream, {.x = AsRow(own),
                                                .scale = PartOf(inverse_lengths_, output),
                                                .shift = {},
                                                .y = AsRow(own)}));
  }
  return AddOrSet(context, own, to.dtensors.back(), to.accumulate);
}

Status ScaledResults::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                     std::span<const WeightGradientTarget> targets) const {
  const OutputGradient inner{dy.for_weight.scales, {}, {dy.for_weight.values, {}}, dy.first_row};
  Tensor dgains;
  for (const WeightGradientTarget& to : targets) {
    if (to.dtensors.empty() || !to.dtensors.back()) continue;
    if (!dgains) {
      const int64_t rows = x.shape().Rows();
      WEFT_ASSIGN_OR_RETURN(const Tensor results,
                            Tensor::New(context, Component::kWorkspace, x.dtype(), {rows, out_}));
      WEFT_RETURN_IF_ERROR(inner_->Forward(context, x, results, {}, {true, dy.first_row}));
      CountWork(context.profiler, 2.0 * static_cast<double>(rows * in_ * out_));
      WEFT_ASSIGN_OR_RETURN(dgains, NewZeros(context, out_));
      WEFT_ASSIGN_OR_RETURN(const Tensor gains, Gains(context));
      WEFT_RETURN_IF_ERROR(kernels::AffineBackward(
          context.stream,
          {.dy = dy.dy, .x = results, .scale = gains, .dx = {}, .dscale = dgains, .dshift = {}}));
    }
    for (const Output& output : outputs_) {
      if (output.column != to.column || output.vector < 0) continue;
      WEFT_RETURN_IF_ERROR(VectorGradient(context, output, dgains, to));
    }
  }
  for (const WeightGradientTarget& to : targets) {
    WeightGradientTarget rest = to;
    // A bias that is added after the scale has the gradient of the result.
    if (normalizes_) rest.dbias = {};
    if (!rest.dtensors.empty()) rest.dtensors.pop_back();
    if (rest.trains_weight() || rest.dbias) {
      WEFT_RETURN_IF_ERROR(inner_->WeightGradient(context, x, inner, {&rest, 1}));
    }
    if (!normalizes_ || !to.dbias) continue;
    rest = to;
    rest.dweight = {};
    rest.dtensors.clear();
    WEFT_RETURN_IF_ERROR(inner_->WeightGradient(context, x, {dy.dy}, {&rest, 1}));
  }
  return OkStatus();
}

ScaledInputs::ScaledInputs(const LinearLayer& layer)
    : parameters_(layer.parameters), vector_(layer.weights.front().first_adapter), dense_(layer) {}

Result<Tensor> ScaledInputs::Scaled(Context& context, const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor scaled,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), x.shape()));
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(
      context.stream, {.x = x, .scale = parameters_->operand(vector_), .shift = {}, .y = scaled}));
  return scaled;
}

Status ScaledInputs::Forward(Context& context, const Tensor& x, const Tensor& y,
                             const GeluValue& active, const ForwardUse& use) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, Scaled(context, x));
  return dense_.Forward(context, scaled, y, active, use);
}

// The operands are the gradient of the scaled inputs.
Result<OutputGradient> ScaledInputs::Prepare(Context& context, Tensor dy,
                                             const GradientUse& use) const {
  const int64_t in = parameters_->operand(vector_).shape.Elements();
  WEFT_ASSIGN_OR_RETURN(const Tensor scaled, Tensor::New(context, Component::kWorkspace, dy.dtype(),
                                                         {dy.shape().Rows(), in}));
  OutputGradient prepared{std::move(dy)};
  WEFT_RETURN_IF_ERROR(dense_.InputGradient(context, prepared, scaled, {}, {}));
  if (use.for_input) prepared.for_input.values = scaled;
  if (use.for_weight) prepared.for_weight.values = scaled;
  return prepared;
}

Status ScaledInputs::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                   const Tensor& before, const GeluValue& active) const {
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(
      context.stream,
      {.x = dy.for_input.values, .scale = parameters_->operand(vector_), .shift = {}, .y = dx}));
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status ScaledInputs::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                    std::span<const WeightGradientTarget> targets) const {
  for (const WeightGradientTarget& to : targets) {
    if (!to.dtensors.empty() && to.dtensors.front()) {
      WEFT_ASSIGN_OR_RETURN(const Tensor sum, NewZeros(context, x.shape()[-1]));
      WEFT_RETURN_IF_ERROR(
          kernels::AffineBackward(context.stream, {.dy = dy.for_weight.values,
                                                   .x = x,
                                                   .scale = parameters_->operand(vector_),
                                                   .dx = {},
                                                   .dscale = sum,
                                                   .dshift = {}}));
      WEFT_RETURN_IF_ERROR(AddOrSet(context, sum.view(), to.dtensors.front(), to.accumulate));
    }
    if (!to.dweight && !to.dbias) continue;
    WEFT_ASSIGN_OR_RETURN(const Tensor scaled, Scaled(context, x));
    WEFT_RETURN_IF_ERROR(dense_.WeightGradient(context, scaled, dy, {&to, 1}));
  }
  return OkStatus();
}

}  // namespace weft::engine
