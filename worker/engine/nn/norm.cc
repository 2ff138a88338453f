#include "worker/engine/nn/norm.h"

#include "kernels/layer_norm/layer_norm.h"

namespace weft::engine {

Norm::Norm(ParameterSet* parameters, const NormOptions& options)
    : parameters_(parameters),
      weight_(parameters->Register(options.name + ".weight", {options.width}, {1, 0})),
      bias_(parameters->Register(options.name + ".bias", {options.width}, {})),
      epsilon_(static_cast<float>(options.epsilon)) {}

Result<Norm::Output> Norm::Forward(Context& context, Tape& tape, const Residual& x) const {
  ProfileScope scope(context.profiler, "layer norm forward");
  const Tensor& stream = x.stream.tensor;
  const Shape shape = stream.shape();
  WEFT_ASSIGN_OR_RETURN(Tensor y, Tensor::New(context, tape.component(), stream.dtype(), shape));
  WEFT_ASSIGN_OR_RETURN(Tensor mean,
                        Tensor::New(context, tape.component(), DType::kF32, {shape.Rows()}));
  WEFT_ASSIGN_OR_RETURN(Tensor rstd,
                        Tensor::New(context, tape.component(), DType::kF32, {shape.Rows()}));
  Tensor sum = stream;
  if (x.delta.tensor) {
    WEFT_ASSIGN_OR_RETURN(sum, Tensor::New(context, tape.component(), stream.dtype(), shape));
  }
  WEFT_RETURN_IF_ERROR(kernels::LayerNormForward(
      context.stream, {.residual = stream,
                       .delta = x.delta.tensor,
                       .residual_out = x.delta.tensor ? sum.view() : TensorView(),
                       .weight = parameters_->value(weight_),
                       .bias = parameters_->value(bias_),
                       .epsilon = epsilon_,
                       .y = y,
                       .mean = mean,
                       .rstd = rstd}));

  tape.UseParameter(weight_);
  tape.UseParameter(bias_);
  const bool input_needs = x.stream.needs_gradient() || x.delta.needs_gradient();
  const bool needs = input_needs || tape.Trains(weight_) || tape.Trains(bias_);
  Output out{tape.NewValue(sum, input_needs), tape.NewValue(std::move(y), needs)};
  if (!tape.Records(out.normalized)) return out;
  tape.Record(
      "layer norm backward",
      [this, stream_node = x.stream.node, delta_node = x.delta.node, sum_node = out.stream.node,
       y_node = out.normalized.node, saved = Tape::Save(std::move(sum)), mean = std::move(mean),
       rstd = std::move(rstd)](Context& ctx, Tape& t) -> Status {
        const Tensor dy = t.TakeGradient(y_node);
        const Tensor dsum = sum_node == Value::kNoNode ? Tensor() : t.TakeGradient(sum_node);
        WEFT_ASSIGN_OR_RETURN(Tensor input, saved.Restore(ctx));
        Tensor dx;
        if (dsum && dsum.unique()) {
          dx = dsum;
        } else {
          WEFT_ASSIGN_OR_RETURN(
              dx, Tensor::New(ctx, Component::kWorkspace, input.dtype(), input.shape()));
        }
        WEFT_ASSIGN_OR_RETURN(TensorView dweight, t.parameters().Add(ctx, weight_));
        WEFT_ASSIGN_OR_RETURN(TensorView dbias, t.parameters().Add(ctx, bias_));
        WEFT_RETURN_IF_ERROR(
            kernels::LayerNormBackward(ctx.stream, {.dy = dy,
                                                    .x = input,
                                                    .weight = parameters_->value(weight_),
                                                    .mean = mean,
                                                    .rstd = rstd,
                                                    .dresidual = dsum,
                                                    .dx = dx,
                                                    .dweight = dweight,
                                                    .dbias = dbias}));
        WEFT_RETURN_IF_ERROR(t.parameters().Done(weight_));
        WEFT_RETURN_IF_ERROR(t.parameters().Done(bias_));
        WEFT_RETURN_IF_ERROR(t.AddGradient(ctx, delta_node, dx));
        return t.AddGradient(ctx, stream_node, std::move(dx));
      });
  return out;
}

}  // namespace weft::engine
