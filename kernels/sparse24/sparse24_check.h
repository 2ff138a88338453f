#pragma once

#include "kernels/sparse24/sparse24.h"

namespace weft::kernels {

// kInvalid unless the arguments fit each other.
Status CheckSparseWeight(int64_t out_features, int64_t in_features, DType compute);
Status CheckSparseMask(const Stream& stream, const SparseWeight& weight, const TensorView& mask);
Status CheckSparsePack(const Stream& stream, const SparseWeight& weight, const TensorView& values);
Status CheckSparseForward(const Stream& stream, const SparseForwardArgs& args);
Status CheckSparseBackwardInput(const Stream& stream, const SparseBackwardInputArgs& args);
Status CheckSparseBackwardWeight(const Stream& stream, const SparseBackwardWeightArgs& args);
Status CheckSampledBackwardWeight(const Stream& stream, const SampledBackwardWeightArgs& args);

}  // namespace weft::kernels
