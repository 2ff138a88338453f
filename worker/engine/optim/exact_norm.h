#pragma once

#include <cstdint>
#include <span>

#include "common/exact_sum.h"
#include "worker/engine/nn/parameter_part.h"

namespace weft::engine {

/// NormSums (optim/gradient_norm.h) that do not depend on how ranks shard the parameters: squares
/// are added in f64 in runs of 16 elements, which no shard cuts, and the runs exactly.
struct ExactNorm {
  ExactSum squares;
  int64_t non_finite = 0;  ///< NaN or infinite elements, which `squares` leaves out.

  void Add(const ExactNorm& other);
};

/// Adds the squares of `count` f32 numbers of the host; the first is `first` elements behind
/// one where runs begin. The same for any number of threads.
void AddSquares(const float* data, int64_t count, int64_t first, ExactNorm* norm);

/// That of the gradients that MeasureGradients measures, of a parameter set on a CPU: of `parts`
/// that this rank counts, or of all that it counts where there are none.
ExactNorm MeasureGradientsExactly(const ParameterSet& parameters,
                                  std::span<const ParameterPart> parts);

}  // namespace weft::engine
