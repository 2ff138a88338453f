#pragma once

#include <cstdint>
#include <memory>

#include "kernels/linear/cpu_weight.h"
#include "kernels/linear/stored_operand.h"

namespace weft::kernels::cpu {

/// c = a b (+ bias), or c += a b, of matrices as they are stored: a [m, k], b [k, n].
struct StoredProduct {
  StoredOperand a, b;
  int64_t m, k, n;
  const float* bias;  ///< [n], or null
  TensorView c;       ///< f32, or of the compute type
  bool accumulate;
};

using RunProduct = void (*)(const StoredProduct&);

/// Runs it for a narrower result: sums are made in f32 and rounded once.
void RunAndRound(const StoredProduct& product, RunProduct run);

/// A matrix as an operand of a product.
StoredOperand StoredAs(const TensorView& matrix, bool sum_in_rows);

/// A weight without a packed copy: `run` multiplies by the stored one.
std::unique_ptr<CpuWeight> NewStoredWeight(int64_t out_features, int64_t in_features, DType compute,
                                           RunProduct run);

}  // namespace weft::kernels::cpu
