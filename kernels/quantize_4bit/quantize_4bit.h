#pragma once

#include <span>

#include "common/four_bit.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// Quantises x into `words` of FourBitLayout(format, x.size()), on the host, whose memory both are
/// in: each number as the nearest of FourBitValues() times the scale of its block, the lower one of
/// two that are equally near. The same bits on every instruction set, with any number of threads.
/// kInvalid where the sizes do not fit, and where a number is not finite.
Status Quantize4Bit(const FourBitFormat& format, std::span<const float> x,
                    std::span<int32_t> words);

/// Takes the words of `part`, which has `elements` numbers, out of those of the tensor, on the
/// host. kInvalid where the sizes do not fit, or a block is cut.
Status Take4BitPart(const FourBitFormat& format, const FourBitPart& part, int64_t elements,
                    std::span<const int32_t> tensor, std::span<int32_t> words);

/// y = FourBitValues()[code] * scale in f32, rounded to y's type; the same bits on every back end
/// and instruction set.
struct Dequantize4BitArgs {
  TensorView words;  ///< i32, as Quantize4Bit or Take4BitPart leaves them
  FourBitFormat format = {};
  TensorView y;  ///< f32, bf16 or f16, contiguous, as many elements as x, or the part of it, had
  FourBitPart part = {};
};

WEFT_DEVICE_OP(Dequantize4Bit, Dequantize4BitArgs)

}  // namespace weft::kernels
