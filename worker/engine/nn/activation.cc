#include "worker/engine/nn/activation.h"

namespace weft::engine {

Result<Value> Gelu(Context& context, Tape& tape, const Value& x, kernels::GeluForm form) {
  const Tensor& input = x.tensor;
  WEFT_ASSIGN_OR_RETURN(Tensor result,
                        Tensor::New(context, tape.component(), input.dtype(), input.shape()));
  WEFT_RETURN_IF_ERROR(kernels::GeluForward(context.stream, {input, result, form}));
  Value y = tape.NewValue(std::move(result), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("gelu backward",
              [form, x_node = x.node, y_node = y.node, saved = tape.Save(input)](
                  Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(Tensor at, saved.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(
                    Tensor dx, Tensor::New(ctx, Component::kWorkspace, dy.dtype(), dy.shape()));
                WEFT_RETURN_IF_ERROR(kernels::GeluBackward(ctx.stream, {dy, at, dx, {}, form}));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

Result<Value> Relu(Context& context, Tape& tape, const Value& x) {
  const Tensor& input = x.tensor;
  WEFT_ASSIGN_OR_RETURN(Tensor result,
                        Tensor::New(context, tape.component(), input.dtype(), input.shape()));
  WEFT_RETURN_IF_ERROR(kernels::UnitForward(context.stream, {input, result}));
  Value y = tape.NewValue(result, x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("relu backward",
              [x_node = x.node, y_node = y.node, saved = tape.Save(std::move(result))](
                  Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                // Above 0 where x is.
                WEFT_ASSIGN_OR_RETURN(Tensor value, saved.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(
                    Tensor dx, Tensor::New(ctx, Component::kWorkspace, dy.dtype(), dy.shape()));
                WEFT_RETURN_IF_ERROR(kernels::UnitBackward(ctx.stream, {dy, value, dx, {}}));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

Result<Value> Tanh(Context& context, Tape& tape, const Value& x) {
  const Tensor& input = x.tensor;
  WEFT_ASSIGN_OR_RETURN(Tensor result,
                        Tensor::New(context, tape.component(), input.dtype(), input.shape()));
  WEFT_RETURN_IF_ERROR(kernels::TanhForward(context.stream, {input, result}));
  Value y = tape.NewValue(result, x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("tanh backward",
              [x_node = x.node, y_node = y.node, saved = tape.Save(std::move(result))](
                  Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(Tensor value, saved.Restore(ctx));
                WEFT_ASSIGN_OR_RETURN(
                    Tensor dx, Tensor::New(ctx, Component::kWorkspace, dy.dtype(), dy.shape()));
                WEFT_RETURN_IF_ERROR(kernels::TanhBackward(ctx.stream, {dy, value, dx}));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

}  // namespace weft::engine
