#pragma once

#include <functional>
#include <string>

#include "common/status.h"
#include "kernels/linear/matmul.h"

namespace weft::kernels::cpu {

/// Computes a product, as Matmul() does.
using ComputeProduct = std::function<Status(const MatmulShape& shape, const void* a,
                                            const MatmulRight& b, const float* bias, void* c)>;

/// Multiplies a few bf16 matrices of small whole numbers, whose sums f32 holds exactly, among them
/// sizes that a release of oneDNN computes wrongly. Empty when all results are right; else what is
/// wrong with the first that is not. Takes some milliseconds.
std::string CheckProducts(const ComputeProduct& compute);

}  // namespace weft::kernels::cpu
