#include "worker/engine/nn/linear.h"

#include "kernels/activation/activation.h"

namespace weft::engine {

Status PackedParameter::Pack(Context& context) {
  const TensorView master = parameters_->padded_value(index_);
  if (packed_ == nullptr) {
    WEFT_ASSIGN_OR_RETURN(packed_, kernels::NewPackedWeight(context.stream.device, master.shape[0],
                                                            master.shape[1], compute_));
  }
  WEFT_RETURN_IF_ERROR(packed_->Pack(context.stream, master));
  return held_.Set(context.allocator, Component::kParameters, packed_->Bytes());
}

Linear::Linear(ParameterSet* parameters, const std::string& name, int64_t in_features,
               int64_t out_features, double deviation, DType compute)
    : parameters_(parameters),
      weight_(parameters,
              parameters->Register(name + ".weight", {out_features, in_features}, {0, deviation}),
              compute),
      bias_(parameters->Register(name + ".bias", {out_features}, {})),
      in_features_(in_features),
      out_features_(out_features) {}

Result<Tensor> Linear::Apply(Context& context, Component component, const Tensor& x) const {
  WEFT_ASSIGN_OR_RETURN(Tensor y, Tensor::New(context, component, weight_.compute(),
                                              {x.shape().Rows(), out_features_}));
  WEFT_RETURN_IF_ERROR(
      kernels::LinearForward(context.stream, {x, weight_.packed(), parameters_->value(bias_), y}));
  return y;
}

Result<Tensor> Linear::InputGradient(Context& context, const Tensor& dy) const {
  WEFT_ASSIGN_OR_RETURN(Tensor dx, Tensor::New(context, Component::kWorkspace, weight_.compute(),
                                               {dy.shape().Rows(), in_features_}));
  WEFT_RETURN_IF_ERROR(
      kernels::LinearBackwardInput(context.stream, {dy, weight_.packed(), dx, false}));
  return dx;
}

Status Linear::AddWeightGradient(Context& context, Tape& tape, const Tensor& x,
                                 const Tensor& dy) const {
  const auto dweight = tape.parameters().Write(weight_.index());
  const auto dbias = tape.parameters().Write(bias_);
  WEFT_CHECK(dweight.accumulate == dbias.accumulate, "weight and bias are used together");
  WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
      context.stream, {x, dy, dweight.gradient, dbias.gradient, dweight.accumulate}));
  WEFT_RETURN_IF_ERROR(tape.parameters().Done(weight_.index()));
  return tape.parameters().Done(bias_);
}

void Linear::Use(Tape& tape) const {
  tape.UseParameter(weight_.index());
  tape.UseParameter(bias_);
}

Result<Value> Linear::Forward(Context& context, Tape& tape, const Value& x) const {
  ProfileScope scope(context.profiler, "linear forward");
  WEFT_ASSIGN_OR_RETURN(Tensor result, Apply(context, tape.component(), x.tensor));
  Use(tape);
  Value y = tape.NewValue(std::move(result));
  if (!tape.recording()) return y;
  tape.Record("linear backward",
              [this, x_node = x.node, y_node = y.node, saved = Tape::Save(x.tensor)](
                  Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(Tensor input, saved.Restore(ctx));
                WEFT_RETURN_IF_ERROR(AddWeightGradient(ctx, t, input, dy));
                WEFT_ASSIGN_OR_RETURN(Tensor dx, InputGradient(ctx, dy));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

Result<Value> GeluLinear(Context& context, Tape& tape, const Linear& linear, const Value& x) {
  ProfileScope scope(context.profiler, "gelu linear forward");
  WEFT_ASSIGN_OR_RETURN(Tensor active, Tensor::New(context, Component::kWorkspace, x.tensor.dtype(),
                                                   x.tensor.shape()));
  WEFT_RETURN_IF_ERROR(kernels::GeluForward(context.stream, {x.tensor, active}));
  WEFT_ASSIGN_OR_RETURN(Tensor result, linear.Apply(context, tape.component(), active));
  linear.Use(tape);
  Value y = tape.NewValue(std::move(result));
  if (!tape.recording()) return y;
  tape.Record("gelu linear backward",
              [&linear, x_node = x.node, y_node = y.node, saved = Tape::Save(x.tensor)](
                  Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(Tensor input, saved.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(Tensor dx, linear.InputGradient(ctx, dy));
                WEFT_ASSIGN_OR_RETURN(Tensor again, Tensor::New(ctx, Component::kWorkspace,
                                                                input.dtype(), input.shape()));
                WEFT_RETURN_IF_ERROR(kernels::GeluBackward(ctx.stream, {dx, input, dx, again}));
                WEFT_RETURN_IF_ERROR(linear.AddWeightGradient(ctx, t, again, dy));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

}  // namespace weft::engine
