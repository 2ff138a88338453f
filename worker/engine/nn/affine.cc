#include "worker/engine/nn/affine.h"

#include <utility>

#include "kernels/affine/affine.h"

namespace weft::engine {
namespace {

// `x` itself when nobody else looks at it, otherwise a new tensor like it.
Result<Tensor> InPlaceOrNew(Context& context, Component component, const Tensor& x) {
  if (x.unique()) return x;
  return Tensor::New(context, component, x.dtype(), x.shape());
}

}  // namespace

Result<Value> Affine::Forward(Context& context, Tape& tape, Value x, const GraftUse&) const {
  ProfileScope scope(context.profiler, "affine forward");
  const bool trains_scale = scale_ >= 0 && tape.Trains(scale_);
  const bool trains = trains_scale || (shift_ >= 0 && tape.Trains(shift_));
  const Tensor input = std::move(x.tensor);
  const Tensor saved = trains_scale && tape.recording() ? input : Tensor();
  WEFT_ASSIGN_OR_RETURN(Tensor result, InPlaceOrNew(context, tape.component(), input));
  WEFT_RETURN_IF_ERROR(kernels::AffineForward(context.stream, {input, scale(), shift(), result}));
  if (scale_ >= 0) tape.UseParameter(scale_);
  if (shift_ >= 0) tape.UseParameter(shift_);
  Value y = tape.NewValue(std::move(result), trains || x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("affine backward",
              [this, x_node = x.node, y_node = y.node, kept = tape.Save(saved)](Context& ctx,
                                                                                Tape& t) -> Status {
                const Tensor dy = t.TakeGradient(y_node);
                WEFT_ASSIGN_OR_RETURN(Tensor kept_input, kept.Restore(ctx));
                Tensor dx;
                if (x_node != Value::kNoNode) {
                  WEFT_ASSIGN_OR_RETURN(dx, InPlaceOrNew(ctx, Component::kWorkspace, dy));
                }
                WEFT_RETURN_IF_ERROR(Differentiate(ctx, t, dy, kept_input, dx));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

Status Affine::Differentiate(Context& context, Tape& tape, const Tensor& dy, const Tensor& x,
                             const Tensor& dx) const {
  ParameterGradients& gradients = tape.parameters();
  kernels::AffineBackwardArgs args = {
      .dy = dy, .x = x, .scale = scale(), .dx = dx, .dscale = {}, .dshift = {}};
  if (scale_ >= 0) {
    WEFT_ASSIGN_OR_RETURN(args.dscale, gradients.Add(context, scale_));
  }
  if (shift_ >= 0) {
    WEFT_ASSIGN_OR_RETURN(args.dshift, gradients.Add(context, shift_));
  }
  WEFT_RETURN_IF_ERROR(kernels::AffineBackward(context.stream, args));
  if (scale_ >= 0) WEFT_RETURN_IF_ERROR(gradients.Done(scale_));
  return shift_ < 0 ? OkStatus() : gradients.Done(shift_);
}

}  // namespace weft::engine
