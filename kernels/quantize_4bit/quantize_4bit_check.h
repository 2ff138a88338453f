#pragma once

#include "kernels/quantize_4bit/quantize_4bit.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckDequantize4Bit(const Stream& stream, const Dequantize4BitArgs& args);

/// Whether a part of this many elements can be: it has whole blocks.
bool IsFourBitPart(const FourBitFormat& format, const FourBitPart& part, int64_t elements);

/// Whether blocks of the format can be computed with.
bool IsFourBitFormat(const FourBitFormat& format);

}  // namespace weft::kernels
