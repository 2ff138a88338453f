#include "worker/engine/nn/rows.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/gather_rows/gather_rows.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

Result<Tensor> Picked(Context& context, Component component, const Tensor& x, const Tensor& rows) {
  WEFT_ASSIGN_OR_RETURN(
      Tensor y, Tensor::New(context, component, x.dtype(), {rows.shape()[0], x.shape()[-1]}));
  WEFT_RETURN_IF_ERROR(kernels::GatherRows(context.stream, {x, rows, y}));
  return y;
}

Result<Tensor> Spread(Context& context, Component component, const Tensor& x, const Tensor& rows,
                      int64_t count) {
  WEFT_ASSIGN_OR_RETURN(Tensor y,
                        Tensor::New(context, component, x.dtype(), {count, x.shape()[-1]}));
  WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {y, 0}));
  WEFT_RETURN_IF_ERROR(kernels::ScatterRows(context.stream, {x, rows, y}));
  return y;
}

}  // namespace

Result<Tensor> ZeroIndices(Context& context, int64_t count) {
  WEFT_ASSIGN_OR_RETURN(Tensor tensor,
                        Tensor::New(context, Component::kWorkspace, DType::kI32, {count}));
  WEFT_RETURN_IF_ERROR(Clear(context.stream, tensor));
  return tensor;
}

Result<Value> GatherRows(Context& context, Tape& tape, const Value& x, const Tensor& rows) {
  WEFT_ASSIGN_OR_RETURN(Tensor picked, Picked(context, tape.component(), x.tensor, rows));
  Value y = tape.NewValue(std::move(picked), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("gather rows backward",
              [rows, count = x.tensor.shape()[0], x_node = x.node, y_node = y.node](
                  Context& ctx, Tape& t) -> Status {
                WEFT_ASSIGN_OR_RETURN(Tensor dx, Spread(ctx, Component::kWorkspace,
                                                        t.TakeGradient(y_node), rows, count));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

Result<Value> ScatterRows(Context& context, Tape& tape, const Value& x, const Tensor& rows,
                          int64_t count) {
  WEFT_ASSIGN_OR_RETURN(Tensor all, Spread(context, tape.component(), x.tensor, rows, count));
  Value y = tape.NewValue(std::move(all), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("scatter rows backward",
              [rows, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
                WEFT_ASSIGN_OR_RETURN(
                    Tensor dx, Picked(ctx, Component::kWorkspace, t.TakeGradient(y_node), rows));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

Result<Value> MergeRows(Context& context, Tape& tape, const Value& a, const Tensor& a_rows,
                        const Value& b, const Tensor& b_rows) {
  const int64_t rows = a_rows.shape()[0] + b_rows.shape()[0];
  WEFT_ASSIGN_OR_RETURN(Tensor merged, Tensor::New(context, tape.component(), a.tensor.dtype(),
                                                   {rows, a.tensor.shape()[-1]}));
  WEFT_RETURN_IF_ERROR(kernels::ScatterRows(context.stream, {a.tensor, a_rows, merged}));
  WEFT_RETURN_IF_ERROR(kernels::ScatterRows(context.stream, {b.tensor, b_rows, merged}));
  Value y = tape.NewValue(std::move(merged), a.needs_gradient() || b.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("merge rows backward",
              [a_rows, b_rows, a_node = a.node, b_node = b.node, y_node = y.node](
                  Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                if (a_node != Value::kNoNode) {
                  WEFT_ASSIGN_OR_RETURN(Tensor da, Picked(ctx, Component::kWorkspace, dy, a_rows));
                  WEFT_RETURN_IF_ERROR(t.AddGradient(ctx, a_node, std::move(da)));
                }
                if (b_node == Value::kNoNode) return OkStatus();
                WEFT_ASSIGN_OR_RETURN(Tensor db, Picked(ctx, Component::kWorkspace, dy, b_rows));
                return t.AddGradient(ctx, b_node, std::move(db));
              });
  return y;
}

}  // namespace weft::engine
