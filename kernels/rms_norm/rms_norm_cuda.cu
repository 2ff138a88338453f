#include "kernels/cuda/norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rms_norm/rms_norm_check.h"

namespace weft::kernels::cuda {

Status RmsNormForward(const Stream& stream, const RmsNormForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckRmsNormForward(stream, args));
  const TensorView& x = args.residual;
  return WithFloatType(x.dtype, [&]<class T>() {
    return NormForward<false, T>(stream, "RmsNormForward",
                                 {.residual = x.As<T>(),
                                  .delta = args.delta ? args.delta.As<T>() : nullptr,
                                  .residual_out = args.delta ? args.residual_out.As<T>() : nullptr,
                                  .weight = args.weight.As<float>(),
                                  .bias = nullptr,
                                  .epsilon = args.epsilon,
                                  .y = args.y.As<T>(),
                                  .mean = nullptr,
                                  .rscale = args.rrms.As<float>(),
                                  .rows = x.shape.Rows(),
                                  .width = static_cast<int>(x.shape[-1])});
  });
}

Status RmsNormBackward(const Stream& stream, const RmsNormBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckRmsNormBackward(stream, args));
  const TensorView& x = args.x;
  return WithFloatType(x.dtype, [&]<class T>() {
    return NormBackward<false, T>(stream, "RmsNormBackward",
                                  {.dy = args.dy.As<T>(),
                                   .x = x.As<T>(),
                                   .weight = args.weight.As<float>(),
                                   .mean = nullptr,
                                   .rscale = args.rrms.As<float>(),
                                   .dresidual = args.dresidual ? args.dresidual.As<T>() : nullptr,
                                   .dx = args.dx.As<T>(),
                                   .partial = nullptr,
                                   .rows = x.shape.Rows(),
                                   .width = static_cast<int>(x.shape[-1])},
                                  args.dweight ? args.dweight.As<float>() : nullptr, nullptr);
  });
}

}  // namespace weft::kernels::cuda
