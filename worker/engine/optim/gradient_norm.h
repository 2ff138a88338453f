#pragma once

#include <cstdint>

#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// What the gradients of all parameters look like together.
struct GradientNorm {
  double norm = 0;         ///< Root of the sum of squares.
  int64_t non_finite = 0;  ///< NaN or infinite elements; norm means nothing when there are any.
};

Result<GradientNorm> MeasureGradients(Context& context, const ParameterSet& parameters);

/// Factor that brings gradients of norm `norm` down to norm `limit`, or 1 when they are within it
/// or `limit` is 0 (Pascanu et al. 2013, arXiv 1211.5063).
double ClipFactor(double norm, double limit);

}  // namespace weft::engine
