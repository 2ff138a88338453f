#include "kernels/quantize_4bit/quantize_4bit_check.h"

#include <bit>

#include "kernels/argument_check.h"

namespace weft::kernels {

bool IsFourBitFormat(const FourBitFormat& format) {
  return format.block_size >= 32 && std::has_single_bit(static_cast<uint64_t>(format.block_size));
}

bool IsFourBitPart(const FourBitFormat& format, const FourBitPart& part, int64_t elements) {
  if (part.whole()) return true;
  const int64_t blocks = elements / format.block_size;
  const bool apart = blocks <= part.run || part.stride >= part.run;
  return part.run > 0 && part.first >= 0 && elements % format.block_size == 0 && apart &&
         (blocks == 0 || part.BlockOf(blocks - 1) < part.of);
}

Status CheckDequantize4Bit(const Stream& stream, const Dequantize4BitArgs& args) {
  ArgumentCheck check(stream, "Dequantize4Bit");
  check.That(IsFourBitFormat(args.format), "block_size is not a power of two from 32 on");
  if (!check.status().ok()) return check.status();
  const int64_t elements = args.y.shape.Elements();
  check.That(IsFourBitPart(args.format, args.part, elements),
             "part is not of whole blocks of the tensor");
  if (!check.status().ok()) return check.status();
  const FourBitLayout layout(args.format, elements, args.part);
  return check.ContiguousTensor("words", args.words, {layout.words}, {DType::kI32})
      .ContiguousTensor("y", args.y, args.y.shape, kFloatTypes)
      .status();
}

}  // namespace weft::kernels
