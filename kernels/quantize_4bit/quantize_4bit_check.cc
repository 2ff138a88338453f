#include "kernels/quantize_4bit/quantize_4bit_check.h"

#include <bit>

#include "kernels/argument_check.h"

namespace weft::kernels {

bool IsFourBitFormat(const FourBitFormat& format) {
  return format.block_size >= 32 && std::has_single_bit(static_cast<uint64_t>(format.block_size));
}

Status CheckDequantize4Bit(const Stream& stream, const Dequantize4BitArgs& args) {
  ArgumentCheck check(stream, "Dequantize4Bit");
  check.That(IsFourBitFormat(args.format), "block_size is not a power of two from 32 on");
  if (!check.status().ok()) return check.status();
  const FourBitLayout layout(args.format, args.y.shape.Elements());
  return check.ContiguousTensor("words", args.words, {layout.words}, {DType::kI32})
      .ContiguousTensor("y", args.y, args.y.shape, kFloatTypes)
      .status();
}

}  // namespace weft::kernels
