#pragma once

#include <string_view>

#include "kernels/sparse24_mask/sparse24_mask.h"

namespace weft::kernels {

/// kInvalid unless the tensors of operation `op` fit each other.
Status CheckMask(const Stream& stream, std::string_view op, const TensorView& weight,
                 const TensorView& mask, const TensorView& flips);

Status CheckSoftThreshold(const Stream& stream, const SoftThresholdArgs& args);

}  // namespace weft::kernels
