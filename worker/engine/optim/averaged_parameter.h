#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// A parameter, f32 or bf16, and the average that stands for it in evaluation.
struct AveragedParameter {
  TensorView parameter;
  float* average = nullptr;
  int64_t count() const { return parameter.shape.Elements(); }
};

/// Exchanges parameters and averages; what becomes bf16 is rounded to nearest. Calling it twice
/// restores the parameters.
Status Exchange(Context& context, const std::vector<AveragedParameter>& averages);

/// The average of `part`, ready for two exchanges after which it is what it was: where the
/// parameter is bf16, a copy in its gradient, which nothing needs between two steps.
Result<AveragedParameter> ExchangeableAverage(Context& context, const ParameterPart& part,
                                              float* average);

}  // namespace weft::engine
