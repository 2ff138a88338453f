#include "worker/engine/models/resized_positions.h"

#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/linear/linear.h"
#include "worker/engine/growth/axis_map.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// out = map^T table, or out += it: both f32, with a row of `map` for each row of `table`.
Status Mix(Context& context, const std::vector<float>& map, const TensorView& table,
           const TensorView& out, bool accumulate) {
  const int64_t from = table.shape[0], to = out.shape[0];
  WEFT_ASSIGN_OR_RETURN(Tensor factors,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {from, to}));
  WEFT_RETURN_IF_ERROR(Upload(context.stream, map.data(), factors));
  CountWork(context.profiler,
            2.0 * static_cast<double>(table.shape.Elements()) * static_cast<double>(to));
  return kernels::LinearBackwardWeight(context.stream, {table, factors, out, {}, accumulate});
}

}  // namespace

ResizedPositions::ResizedPositions(ParameterSet* parameters, int64_t table, int64_t table_side,
                                   int64_t side, DType compute)
    : parameters_(parameters), table_(table), rows_(side * side + 1), compute_(compute) {
  AxisMap rows = AxisMap::Identity(1);
  rows.Append(AxisMap::Resized(table_side, side));
  const int64_t old_rows = rows.old_size();
  map_.resize(static_cast<size_t>(rows_ * old_rows));
  transposed_.resize(map_.size());
  for (int64_t i = 0; i < rows_; ++i) {
    for (const AxisMap::Term& term : rows[i]) {
      const auto factor = static_cast<float>(term.factor);
      map_[static_cast<size_t>(i * old_rows + term.old)] = factor;
      transposed_[static_cast<size_t>(term.old * rows_ + i)] = factor;
    }
  }
}

Result<Value> ResizedPositions::Forward(Context& context, Tape& tape,
                                        const Tensor& positions) const {
  ProfileScope scope(context.profiler, "resized positions forward");
  TensorView table = parameters_->operand(table_);
  const int64_t width = table.shape[-1];
  Tensor as_f32;
  if (table.dtype != DType::kF32) {
    WEFT_ASSIGN_OR_RETURN(as_f32,
                          Tensor::New(context, Component::kWorkspace, DType::kF32, table.shape));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {table, as_f32}));
    table = as_f32.view();
  }
  WEFT_ASSIGN_OR_RETURN(Tensor resized,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {rows_, width}));
  WEFT_RETURN_IF_ERROR(Mix(context, transposed_, table, resized, /*accumulate=*/false));
  WEFT_ASSIGN_OR_RETURN(
      Tensor out, Tensor::New(context, tape.component(), compute_, {positions.shape()[0], width}));
  WEFT_RETURN_IF_ERROR(kernels::EmbeddingForward(context.stream, {.tokens = positions,
                                                                  .positions = {},
                                                                  .token_table = resized,
                                                                  .position_table = {},
                                                                  .out = out}));
  tape.UseParameter(table_);
  Value y = tape.NewValue(std::move(out), tape.Trains(table_));
  if (!tape.Records(y)) return y;
  tape.Record("resized positions backward",
              [this, width, positions, y_node = y.node](Context& ctx, Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(Tensor dresized, Tensor::New(ctx, Component::kWorkspace,
                                                                   DType::kF32, {rows_, width}));
                WEFT_RETURN_IF_ERROR(kernels::Fill(ctx.stream, {dresized, 0.0f}));
                WEFT_RETURN_IF_ERROR(
                    kernels::EmbeddingBackward(ctx.stream, {positions, {}, dy, dresized, {}}));
                WEFT_ASSIGN_OR_RETURN(const TensorView dtable, t.parameters().Add(ctx, table_));
                WEFT_RETURN_IF_ERROR(Mix(ctx, map_, dresized, dtable, /*accumulate=*/true));
                return t.parameters().Done(table_);
              });
  return y;
}

}  // namespace weft::engine
