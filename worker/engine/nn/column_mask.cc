#include "worker/engine/nn/column_mask.h"

#include <utility>

#include "kernels/affine/affine.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

Result<Tensor> Masked(Context& context, Component component, const ColumnMask& mask, Tensor x) {
  const bool in_place = x.unique();
  Tensor y = x;
  if (!in_place) {
    WEFT_ASSIGN_OR_RETURN(y, Tensor::New(context, component, x.dtype(), x.shape()));
  }
  WEFT_RETURN_IF_ERROR(mask.Apply(context, x, y));
  return y;
}

}  // namespace

Status ColumnMask::SetShare(Context& context, float share) {
  masks_ = kept_ < columns_ && share < 1;
  if (kept_ == columns_) return OkStatus();
  if (!values_) {
    WEFT_ASSIGN_OR_RETURN(values_,
                          Tensor::New(context, Component::kParameters, DType::kF32, {columns_}));
    WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {values_, 1}));
  }
  return kernels::Fill(context.stream, {values_.Elements(kept_, columns_ - kept_), share});
}

Status ColumnMask::Apply(Context& context, const TensorView& x, const TensorView& y) const {
  return kernels::AffineForward(context.stream, {.x = x, .scale = values_, .shift = {}, .y = y});
}

Result<Value> MaskColumns::Forward(Context& context, Tape& tape, Value x, const GraftUse&) const {
  if (!mask_->masks()) return x;
  ProfileScope scope(context.profiler, "mask columns");
  WEFT_ASSIGN_OR_RETURN(Tensor result,
                        Masked(context, tape.component(), *mask_, std::move(x.tensor)));
  Value y = tape.NewValue(std::move(result), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("mask columns backward",
              [mask = mask_, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
                WEFT_ASSIGN_OR_RETURN(
                    Tensor dx, Masked(ctx, Component::kWorkspace, *mask, t.TakeGradient(y_node)));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

}  // namespace weft::engine
