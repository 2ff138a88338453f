#include "kernels/cuda/norm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/layer_norm/layer_norm_check.h"

namespace weft::kernels::cuda {

Status LayerNormForward(const Stream& stream, const LayerNormForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLayerNormForward(stream, args));
  const TensorView& x = args.residual;
  return WithFloatType(x.dtype, [&]<class T>() {
    return NormForward<true, T>(stream, "LayerNormForward",
                                {.residual = x.As<T>(),
                                 .delta = args.delta ? args.delta.As<T>() : nullptr,
                                 .residual_out = args.delta ? args.residual_out.As<T>() : nullptr,
                                 .weight = args.weight.As<float>(),
                                 .bias = args.bias.As<float>(),
                                 .epsilon = args.epsilon,
                                 .y = args.y.As<T>(),
                                 .mean = args.mean.As<float>(),
                                 .rscale = args.rstd.As<float>(),
                                 .rows = x.shape.Rows(),
                                 .width = static_cast<int>(x.shape[-1])});
  });
}

Status LayerNormBackward(const Stream& stream, const LayerNormBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckLayerNormBackward(stream, args));
  const TensorView& x = args.x;
  return WithFloatType(x.dtype, [&]<class T>() {
    return NormBackward<true, T>(stream, "LayerNormBackward",
                                 {.dy = args.dy.As<T>(),
                                  .x = x.As<T>(),
                                  .weight = args.weight.As<float>(),
                                  .mean = args.mean.As<float>(),
                                  .rscale = args.rstd.As<float>(),
                                  .dresidual = args.dresidual ? args.dresidual.As<T>() : nullptr,
                                  .dx = args.dx.As<T>(),
                                  .partial = nullptr,
                                  .rows = x.shape.Rows(),
                                  .width = static_cast<int>(x.shape[-1])},
                                 args.dweight ? args.dweight.As<float>() : nullptr,
                                 args.dbias ? args.dbias.As<float>() : nullptr);
  });
}

}  // namespace weft::kernels::cuda
