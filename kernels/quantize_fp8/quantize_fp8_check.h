#pragma once

#include "kernels/quantize_fp8/quantize_fp8.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckQuantizeFp8(const Stream& stream, const QuantizeFp8Args& args);
Status CheckUpdateFp8Scales(const Stream& stream, const UpdateFp8ScalesArgs& args);

inline constexpr float kSmallestFp8Scale = 0x1.0p-126f;
inline constexpr float kLargestFp8Scale = 0x1.0p126f;

}  // namespace weft::kernels
