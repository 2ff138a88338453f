#include "worker/engine/techniques/masked_products.h"

#include "kernels/activation/activation.h"

namespace weft::engine {

Result<Tensor> MaskedProducts::Masked(Context& context, const Tensor& x) const {
  if (!mask_->masks()) return x;
  WEFT_ASSIGN_OR_RETURN(Tensor masked,
                        Tensor::New(context, Component::kWorkspace, x.dtype(), x.shape()));
  WEFT_RETURN_IF_ERROR(mask_->Apply(context, x, masked));
  return masked;
}

Status MaskedProducts::Forward(Context& context, const Tensor& x, const Tensor& y,
                               const GeluValue& active, const ForwardUse& use) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor masked, Masked(context, x));
  return dense_.Forward(context, masked, y, active, use);
}

Status MaskedProducts::InputGradient(Context& context, const OutputGradient& dy, const Tensor& dx,
                                     const Tensor& before, const GeluValue& active) const {
  if (!mask_->masks()) return dense_.InputGradient(context, dy, dx, before, active);
  WEFT_RETURN_IF_ERROR(dense_.InputGradient(context, dy, dx, {}, {}));
  WEFT_RETURN_IF_ERROR(mask_->Apply(context, dx, dx));
  if (!before) return OkStatus();
  return kernels::GeluBackward(context.stream, {dx, before, dx, active.value, active.form});
}

Status MaskedProducts::WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                                      std::span<const WeightGradientTarget> targets) const {
  WEFT_ASSIGN_OR_RETURN(const Tensor masked, Masked(context, x));
  return dense_.WeightGradient(context, masked, dy, targets);
}

}  // namespace weft::engine
