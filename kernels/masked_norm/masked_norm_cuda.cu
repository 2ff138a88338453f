#include "kernels/cuda/norm.h"
#include "kernels/masked_norm/masked_norm.h"
#include "kernels/masked_norm/masked_norm_check.h"

namespace weft::kernels::cuda {
namespace {

template <class T>
T* OrNull(const TensorView& view) {
  return view ? view.As<T>() : nullptr;
}

template <bool kCentered, class T>
Status Forward(const Stream& stream, const MaskedNormForwardArgs& args) {
  const TensorView& x = args.residual;
  return NormForward<kCentered, T, NormRows::kMasked>(
      stream, "MaskedNormForward",
      {.residual = x.As<T>(),
       .delta = OrNull<T>(args.delta),
       .residual_out = args.delta ? args.residual_out.As<T>() : nullptr,
       .weight = args.weight.As<float>(),
       .bias = OrNull<float>(args.bias),
       .epsilon = args.epsilon,
       .y = args.y.As<T>(),
       .mean = OrNull<float>(args.mean),
       .rscale = args.scale.As<float>(),
       .rows = x.shape.Rows(),
       .width = static_cast<int>(x.shape[-1]),
       .mask = args.mask.As<float>()});
}

template <bool kCentered, class T>
Status Backward(const Stream& stream, const MaskedNormBackwardArgs& args) {
  const TensorView& x = args.x;
  return NormBackward<kCentered, T, NormRows::kMasked>(stream, "MaskedNormBackward",
                                                       {.dy = args.dy.As<T>(),
                                                        .x = x.As<T>(),
                                                        .weight = args.weight.As<float>(),
                                                        .mean = OrNull<float>(args.mean),
                                                        .rscale = args.scale.As<float>(),
                                                        .dresidual = OrNull<T>(args.dresidual),
                                                        .dx = args.dx.As<T>(),
                                                        .partial = nullptr,
                                                        .rows = x.shape.Rows(),
                                                        .width = static_cast<int>(x.shape[-1]),
                                                        .mask = args.mask.As<float>()},
                                                       OrNull<float>(args.dweight),
                                                       OrNull<float>(args.dbias));
}

}  // namespace

Status MaskedNormForward(const Stream& stream, const MaskedNormForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMaskedNormForward(stream, args));
  return WithFloatType(args.residual.dtype, [&]<class T>() {
    return args.bias ? Forward<true, T>(stream, args) : Forward<false, T>(stream, args);
  });
}

Status MaskedNormBackward(const Stream& stream, const MaskedNormBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMaskedNormBackward(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return args.mean ? Backward<true, T>(stream, args) : Backward<false, T>(stream, args);
  });
}

}  // namespace weft::kernels::cuda
