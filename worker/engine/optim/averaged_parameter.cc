#include "worker/engine/optim/averaged_parameter.h"

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

Status Exchange(Context& context, const std::vector<AveragedParameter>& averages) {
  for (const AveragedParameter& a : averages) {
    if (a.count() == 0) continue;
    const TensorView average(a.average, DType::kF32, a.parameter.shape, a.parameter.device);
    WEFT_ASSIGN_OR_RETURN(const Tensor value, Tensor::New(context, Component::kWorkspace,
                                                          DType::kF32, a.parameter.shape));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {a.parameter, value}));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {average, a.parameter}));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {value, average}));
  }
  return OkStatus();
}

Result<AveragedParameter> ExchangeableAverage(Context& context, const ParameterPart& part,
                                              float* average) {
  const TensorView& value = part.value;
  if (value.dtype == DType::kF32 || part.count() == 0) return AveragedParameter{value, average};
  const TensorView& copy = part.gradient;
  WEFT_RETURN_IF_ERROR(
      kernels::Cast(context.stream, {{average, DType::kF32, copy.shape, copy.device}, copy}));
  return AveragedParameter{value, copy.As<float>()};
}

}  // namespace weft::engine
