#include "worker/engine/nn/rows.h"

#include <utility>

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

Result<Value> RepeatRows(Context& context, Tape& tape, const Value& x, int64_t times,
                         int64_t first_column, int64_t columns) {
  const int64_t rows = x.tensor.shape()[0], width = x.tensor.shape()[-1];
  WEFT_ASSIGN_OR_RETURN(Tensor repeated, Tensor::New(context, tape.component(), x.tensor.dtype(),
                                                     {times * rows, columns}));
  if (width < columns) WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {repeated, 0}));
  for (int64_t i = 0; i < times; ++i) {
    WEFT_RETURN_IF_ERROR(CopyRows(context.stream, x.tensor,
                                  repeated.Rows(i * rows, rows).Columns(first_column, width)));
  }
  Value y = tape.NewValue(std::move(repeated), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("repeat rows backward",
              [=, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                const Shape shape{rows, width};
                WEFT_ASSIGN_OR_RETURN(Tensor one,
                                      Tensor::New(ctx, Component::kWorkspace, dy.dtype(), shape));
                WEFT_ASSIGN_OR_RETURN(Tensor sum,
                                      Tensor::New(ctx, Component::kWorkspace, DType::kF32, shape));
                for (int64_t i = 0; i < times; ++i) {
                  WEFT_RETURN_IF_ERROR(CopyRows(
                      ctx.stream, dy.Rows(i * rows, rows).Columns(first_column, width), one));
                  WEFT_RETURN_IF_ERROR(kernels::AddScaled(
                      ctx.stream, {.x = one, .y = sum, .keep = i == 0 ? 0.0f : 1.0f}));
                }
                if (dy.dtype() == DType::kF32) return t.AddGradient(ctx, x_node, std::move(sum));
                WEFT_RETURN_IF_ERROR(kernels::Cast(ctx.stream, {sum, one}));
                return t.AddGradient(ctx, x_node, std::move(one));
              });
  return y;
}

}  // namespace weft::engine
