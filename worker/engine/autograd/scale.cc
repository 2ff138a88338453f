#include "worker/engine/autograd/scale.h"

#include <utility>

#include "kernels/elementwise/elementwise.h"

namespace weft::engine {
namespace {

Result<Tensor> Scaled(Context& context, Component component, Tensor x, float factor) {
  if (!x.unique()) {
    WEFT_ASSIGN_OR_RETURN(Tensor copy, Tensor::New(context, component, x.dtype(), x.shape()));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {x, copy}));
    x = std::move(copy);
  }
  WEFT_RETURN_IF_ERROR(kernels::Scale(context.stream, {x, factor}));
  return x;
}

}  // namespace

Result<Value> Scale(Context& context, Tape& tape, Value x, float factor) {
  WEFT_ASSIGN_OR_RETURN(Tensor result,
                        Scaled(context, tape.component(), std::move(x.tensor), factor));
  Value y = tape.NewValue(std::move(result), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("scale backward",
              [factor, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
                WEFT_ASSIGN_OR_RETURN(
                    Tensor dx, Scaled(ctx, Component::kWorkspace, t.TakeGradient(y_node), factor));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

}  // namespace weft::engine
