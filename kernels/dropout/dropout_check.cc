#include "kernels/dropout/dropout_check.h"

#include <cmath>

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckDropout(const Stream& stream, const DropoutArgs& args) {
  return ArgumentCheck(stream, "Dropout")
      .ContiguousTensor("x", args.x, args.x.shape, kFloatTypes)
      .ContiguousTensor("y", args.y, args.x.shape, {args.x.dtype})
      .That(args.probability >= 0 && args.probability < 1, "probability is not in [0, 1)")
      .That(args.first_element % 4 == 0, "first_element is not a multiple of 4")
      .That(args.columns >= 0 && args.columns % 4 == 0 && args.row_stride % 4 == 0,
            "columns of a wider matrix are not multiples of 4")
      .That(args.columns == 0 || args.x.shape.Elements() % args.columns == 0,
            "columns do not divide the elements")
      .status();
}

DropoutDraw DrawOf(const DropoutArgs& args) {
  // UniformFloat(word) is k / 2^24 for the word's upper 24 bits k, and k / 2^24 < p is k < p 2^24.
  return {.key = args.key,
          .threshold = static_cast<int32_t>(std::ceil(args.probability * 0x1.0p24)),
          .scale = 1.0f / (1.0f - args.probability)};
}

}  // namespace weft::kernels
