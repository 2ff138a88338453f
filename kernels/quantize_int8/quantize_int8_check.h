#pragma once

#include "kernels/quantize_int8/quantize_int8.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckQuantizeInt8(const Stream& stream, const QuantizeInt8Args& args);
Status CheckDequantizeInt8(const Stream& stream, const DequantizeInt8Args& args);

inline constexpr float kLargestInt8 = 127.0f;
/// Magnitudes below this count as 0: 127 over them would leave the range of f32.
inline constexpr float kSmallestInt8Group = 0x1.0p-100f;

/// Groups of a row.
inline int64_t Int8Groups(int64_t columns, int64_t group) {
  return (columns + group - 1) / group;
}

}  // namespace weft::kernels
