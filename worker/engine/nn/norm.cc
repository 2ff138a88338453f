#include "worker/engine/nn/norm.h"

#include "kernels/layer_norm/layer_norm.h"
#include "kernels/masked_norm/masked_norm.h"
#include "kernels/norm_part/norm_part.h"
#include "kernels/rms_norm/rms_norm.h"

namespace weft::engine {
namespace {

int64_t Register(ParameterSet* parameters, const NormOptions& options, bool bias) {
  const TensorParallel* ranks = options.ranks;
  const bool shared = ranks != nullptr;
  return parameters->Register(
      options.name + (bias ? ".bias" : ".weight"),
      {shared ? ranks->Features(options.width) : options.width}, options.role,
      {.bias = bias, .shard = shared ? ranks->FeatureRows(options.width) : Shard()});
}

}  // namespace

Norm::Norm(ParameterSet* parameters, const NormOptions& options)
    : parameters_(parameters),
      column_group_(options.ranks == nullptr ? nullptr : options.ranks->along_column()),
      mask_(options.mask),
      width_(options.width),
      weight_(Register(parameters, options, false)),
      bias_(options.kind == NormKind::kLayer ? Register(parameters, options, true) : -1),
      epsilon_(static_cast<float>(options.epsilon)) {
  WEFT_CHECK(mask_ == nullptr || column_group_ == nullptr, "whole rows are masked");
}

Status Norm::Normalize(Context& context, const Residual& x, const Tensor& sum,
                       const Statistics& rows, const Tensor& y) const {
  if (column_group_ != nullptr) return NormalizePart(context, x, sum, rows, y);
  if (masked()) return NormalizeMasked(context, x, sum, rows, y);
  const TensorView added = x.delta.tensor ? sum.view() : TensorView();
  if (layer()) {
    return kernels::LayerNormForward(context.stream, {.residual = x.stream.tensor,
                                                      .delta = x.delta.tensor,
                                                      .residual_out = added,
                                                      .weight = parameters_->operand(weight_),
                                                      .bias = parameters_->operand(bias_),
                                                      .epsilon = epsilon_,
                                                      .y = y,
                                                      .mean = rows.mean,
                                                      .rstd = rows.scale});
  }
  return kernels::RmsNormForward(context.stream, {.residual = x.stream.tensor,
                                                  .delta = x.delta.tensor,
                                                  .residual_out = added,
                                                  .weight = parameters_->operand(weight_),
                                                  .epsilon = epsilon_,
                                                  .y = y,
                                                  .rrms = rows.scale});
}

Status Norm::Differentiate(Context& context, Tape& tape, const Tensor& dy, const Tensor& sum,
                           const Statistics& rows, const Tensor& dsum, const Tensor& dx) const {
  if (column_group_ != nullptr) return DifferentiatePart(context, tape, dy, sum, rows, dsum, dx);
  if (masked()) return DifferentiateMasked(context, tape, dy, sum, rows, dsum, dx);
  ParameterGradients& gradients = tape.parameters();
  WEFT_ASSIGN_OR_RETURN(TensorView dweight, gradients.Add(context, weight_));
  if (!layer()) {
    WEFT_RETURN_IF_ERROR(
        kernels::RmsNormBackward(context.stream, {.dy = dy,
                                                  .x = sum,
                                                  .weight = parameters_->operand(weight_),
                                                  .rrms = rows.scale,
                                                  .dresidual = dsum,
                                                  .dx = dx,
                                                  .dweight = dweight}));
    return gradients.Done(weight_);
  }
  WEFT_ASSIGN_OR_RETURN(TensorView dbias, gradients.Add(context, bias_));
  WEFT_RETURN_IF_ERROR(
      kernels::LayerNormBackward(context.stream, {.dy = dy,
                                                  .x = sum,
                                                  .weight = parameters_->operand(weight_),
                                                  .mean = rows.mean,
                                                  .rstd = rows.scale,
                                                  .dresidual = dsum,
                                                  .dx = dx,
                                                  .dweight = dweight,
                                                  .dbias = dbias}));
  WEFT_RETURN_IF_ERROR(gradients.Done(weight_));
  return gradients.Done(bias_);
}

Status Norm::NormalizeMasked(Context& context, const Residual& x, const Tensor& sum,
                             const Statistics& rows, const Tensor& y) const {
  return kernels::MaskedNormForward(context.stream,
                                    {.residual = x.stream.tensor,
                                     .delta = x.delta.tensor,
                                     .residual_out = x.delta.tensor ? sum.view() : TensorView(),
                                     .weight = parameters_->operand(weight_),
                                     .bias = layer() ? parameters_->operand(bias_) : TensorView(),
                                     .mask = mask_->values(),
                                     .epsilon = epsilon_,
                                     .y = y,
                                     .mean = rows.mean,
                                     .scale = rows.scale});
}

Status Norm::DifferentiateMasked(Context& context, Tape& tape, const Tensor& dy, const Tensor& sum,
                                 const Statistics& rows, const Tensor& dsum,
                                 const Tensor& dx) const {
  ParameterGradients& gradients = tape.parameters();
  WEFT_ASSIGN_OR_RETURN(TensorView dweight, gradients.Add(context, weight_));
  TensorView dbias;
  if (layer()) {
    WEFT_ASSIGN_OR_RETURN(dbias, gradients.Add(context, bias_));
  }
  WEFT_RETURN_IF_ERROR(
      kernels::MaskedNormBackward(context.stream, {.dy = dy,
                                                   .x = sum,
                                                   .weight = parameters_->operand(weight_),
                                                   .mask = mask_->values(),
                                                   .mean = rows.mean,
                                                   .scale = rows.scale,
                                                   .dresidual = dsum,
                                                   .dx = dx,
                                                   .dweight = dweight,
                                                   .dbias = dbias}));
  WEFT_RETURN_IF_ERROR(gradients.Done(weight_));
  return layer() ? gradients.Done(bias_) : OkStatus();
}

Status Norm::NormalizePart(Context& context, const Residual& x, const Tensor& sum,
                           const Statistics& rows, const Tensor& y) const {
  const int64_t numbers = kernels::NormPartNumbers(layer());
  WEFT_ASSIGN_OR_RETURN(Tensor all,
                        Tensor::New(context, Component::kWorkspace, DType::kF32,
                                    {column_group_->size() * numbers, sum.shape().Rows()}));
  const Tensor own = all.Rows(column_group_->rank() * numbers, numbers);
  kernels::MeasureNormPartArgs measure{.residual = x.stream.tensor, .layer = layer(), .found = own};
  if (x.delta.tensor) {
    measure.delta = x.delta.tensor;
    measure.sum = sum;
  }
  WEFT_RETURN_IF_ERROR(kernels::MeasureNormPart(context.stream, measure));
  WEFT_RETURN_IF_ERROR(
      column_group_->AllGather(context.stream, own, all, "norm of parts").Wait(context.stream));
  return kernels::NormOfParts(context.stream,
                              {.x = sum,
                               .weight = parameters_->operand(weight_),
                               .bias = layer() ? parameters_->operand(bias_) : TensorView(),
                               .epsilon = epsilon_,
                               .found = all,
                               .y = y,
                               .mean = rows.mean,
                               .scale = rows.scale});
}

Status Norm::DifferentiatePart(Context& context, Tape& tape, const Tensor& dy, const Tensor& sum,
                               const Statistics& rows, const Tensor& dsum, const Tensor& dx) const {
  ParameterGradients& gradients = tape.parameters();
  WEFT_ASSIGN_OR_RETURN(Tensor sums,
                        Tensor::New(context, Component::kWorkspace, DType::kF32,
                                    {kernels::NormPartNumbers(layer()), sum.shape().Rows()}));
  WEFT_ASSIGN_OR_RETURN(TensorView dweight, gradients.Add(context, weight_));
  TensorView dbias;
  if (layer()) {
    WEFT_ASSIGN_OR_RETURN(dbias, gradients.Add(context, bias_));
  }
  WEFT_RETURN_IF_ERROR(
      kernels::MeasureNormGradientPart(context.stream, {.dy = dy,
                                                        .x = sum,
                                                        .weight = parameters_->operand(weight_),
                                                        .mean = rows.mean,
                                                        .scale = rows.scale,
                                                        .dweight = dweight,
                                                        .dbias = dbias,
                                                        .found = sums}));
  WEFT_RETURN_IF_ERROR(
      column_group_->AllReduce(context.stream, sums, Reduction::kSum, "norm gradient of parts")
          .Wait(context.stream));
  WEFT_RETURN_IF_ERROR(
      kernels::NormGradientOfParts(context.stream, {.dy = dy,
                                                    .x = sum,
                                                    .weight = parameters_->operand(weight_),
                                                    .mean = rows.mean,
                                                    .scale = rows.scale,
                                                    .width = width_,
                                                    .sums = sums,
                                                    .dresidual = dsum,
                                                    .dx = dx}));
  WEFT_RETURN_IF_ERROR(gradients.Done(weight_));
  return layer() ? gradients.Done(bias_) : OkStatus();
}

Result<Norm::Output> Norm::Forward(Context& context, Tape& tape, const Residual& x) const {
  ProfileScope scope(context.profiler, "norm forward");
  const Tensor& stream = x.stream.tensor;
  const Shape shape = stream.shape();
  WEFT_ASSIGN_OR_RETURN(Tensor y, Tensor::New(context, tape.component(), stream.dtype(), shape));
  Statistics rows;
  if (layer()) {
    WEFT_ASSIGN_OR_RETURN(rows.mean,
                          Tensor::New(context, tape.component(), DType::kF32, {shape.Rows()}));
  }
  WEFT_ASSIGN_OR_RETURN(rows.scale,
                        Tensor::New(context, tape.component(), DType::kF32, {shape.Rows()}));
  Tensor sum = stream;
  if (x.delta.tensor) {
    WEFT_ASSIGN_OR_RETURN(sum, Tensor::New(context, tape.component(), stream.dtype(), shape));
  }
  WEFT_RETURN_IF_ERROR(Normalize(context, x, sum, rows, y));

  tape.UseParameter(weight_);
  if (layer()) tape.UseParameter(bias_);
  const bool input_needs = x.stream.needs_gradient() || x.delta.needs_gradient();
  const bool trains = tape.Trains(weight_) || (layer() && tape.Trains(bias_));
  Output out{tape.NewValue(sum, input_needs), tape.NewValue(std::move(y), input_needs || trains)};
  if (!tape.Records(out.normalized)) return out;
  WEFT_ASSIGN_OR_RETURN(SavedTensor saved, tape.Keep(context, sum));
  tape.Record("norm backward",
              [this, stream_node = x.stream.node, delta_node = x.delta.node,
               sum_node = out.stream.node, y_node = out.normalized.node, saved = std::move(saved),
               saved_mean = tape.Save(std::move(rows.mean)),
               saved_scale = tape.Save(std::move(rows.scale))](Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                const Tensor dsum =
                    sum_node == Value::kNoNode ? Tensor() : t.TakeGradient(sum_node);
                WEFT_ASSIGN_OR_RETURN(Tensor input, saved.Restore(ctx));
                Statistics kept;
                WEFT_ASSIGN_OR_RETURN(kept.mean, saved_mean.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(kept.scale, saved_scale.Restore(ctx));
                Tensor dx;
                if (dsum && dsum.unique()) {
                  dx = dsum;
                } else {
                  WEFT_ASSIGN_OR_RETURN(
                      dx, Tensor::New(ctx, Component::kWorkspace, input.dtype(), input.shape()));
                }
                WEFT_RETURN_IF_ERROR(Differentiate(ctx, t, dy, input, kept, dsum, dx));
                WEFT_RETURN_IF_ERROR(t.AddGradient(ctx, delta_node, dx));
                return t.AddGradient(ctx, stream_node, std::move(dx));
              });
  return out;
}

}  // namespace weft::engine
