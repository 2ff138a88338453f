#include "worker/engine/techniques/factor_products.h"

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/tensor/profiler.h"

namespace weft::engine {
namespace {

void CountProduct(Context& context, const TensorView& factor, int64_t other_side) {
  CountWork(context.profiler,
            2.0 * static_cast<double>(factor.shape.Elements()) * static_cast<double>(other_side));
}

}  // namespace

Status MultiplyFactors(Context& context, const TensorView& out_factor, const TensorView& in_factor,
                       const TensorView& weight, bool accumulate) {
  CountProduct(context, out_factor, weight.shape[1]);
  return kernels::LinearBackwardWeight(context.stream,
                                       {in_factor, out_factor, weight, {}, accumulate});
}

Result<TensorView> InF32(Context& context, const TensorView& matrix, Tensor& storage) {
  if (matrix.dtype == DType::kF32) return matrix;
  WEFT_ASSIGN_OR_RETURN(storage,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, matrix.shape));
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {matrix, storage}));
  return storage.view();
}

Status PackedGradient::Pack(Context& context, const TensorView& gradient) {
  const Shape& shape = gradient.shape;
  const bool fits = packed_ != nullptr && packed_->out_features() == shape[0] &&
                    packed_->in_features() == shape[1];
  if (!fits) {
    packed_.reset();
    WEFT_ASSIGN_OR_RETURN(
        packed_, kernels::NewPackedWeight(context.stream.device, shape[0], shape[1], DType::kF32));
  }
  WEFT_RETURN_IF_ERROR(packed_->Pack(context.stream, gradient));
  return held_.Set(context.allocator, Component::kWorkspace, packed_->Bytes());
}

Status PackedGradient::ToOutFactor(Context& context, const TensorView& in_factor,
                                   const TensorView& gradient) const {
  Tensor storage;
  WEFT_ASSIGN_OR_RETURN(const TensorView f, InF32(context, in_factor, storage));
  CountProduct(context, f, packed_->out_features());
  return kernels::LinearForward(context.stream, {f, packed_.get(), {}, gradient});
}

Status PackedGradient::ToInFactor(Context& context, const TensorView& out_factor,
                                  const TensorView& gradient) const {
  Tensor storage;
  WEFT_ASSIGN_OR_RETURN(const TensorView e, InF32(context, out_factor, storage));
  CountProduct(context, e, packed_->in_features());
  return kernels::LinearBackwardInput(context.stream, {e, packed_.get(), gradient, false});
}

}  // namespace weft::engine
