#pragma once

#include "kernels/linear/linear.h"

namespace weft::kernels {

/// What all back ends demand of the arguments. The caller has found args.weight
/// to be one of its own.
Status CheckLinearForward(const Stream& stream, const LinearForwardArgs& args);
Status CheckLinearBackwardInput(const Stream& stream, const LinearBackwardInputArgs& args);
Status CheckLinearBackwardWeight(const Stream& stream, const LinearBackwardWeightArgs& args);
Status CheckNewPackedWeight(int64_t out_features, int64_t in_features, DType compute);
Status CheckPack(const Stream& stream, const PackedWeight& weight, const TensorView& master);

}  // namespace weft::kernels
