#include "worker/engine/autograd/add.h"

#include "kernels/elementwise/elementwise.h"

namespace weft::engine {

Result<Value> Add(Context& context, Tape& tape, const Value& a, const Value& b) {
  WEFT_ASSIGN_OR_RETURN(Tensor sum,
                        Tensor::New(context, tape.component(), a.tensor.dtype(), a.tensor.shape()));
  WEFT_RETURN_IF_ERROR(kernels::Add(context.stream, {a.tensor, b.tensor, sum}));
  Value y = tape.NewValue(std::move(sum), a.needs_gradient() || b.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("add backward",
              [a_node = a.node, b_node = b.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                WEFT_RETURN_IF_ERROR(t.AddGradient(ctx, a_node, dy));
                return t.AddGradient(ctx, b_node, dy);
              });
  return y;
}

}  // namespace weft::engine
