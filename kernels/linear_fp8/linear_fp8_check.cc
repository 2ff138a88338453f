#include "kernels/linear_fp8/linear_fp8_check.h"

#include <cstdint>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

bool Aligned(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

}  // namespace

Status CheckMatmulFp8(const Stream& stream, const MatmulFp8Args& args) {
  const TensorView &a = args.a.codes, &b = args.b.codes;
  ArgumentCheck check(stream, "MatmulFp8");
  check.That(a.shape.rank == 2 && b.shape.rank == 2, "a and b must be matrices");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t m = a.shape[0], n = b.shape[0], k = a.shape[1];
  check.That(k > 0 && k % 16 == 0 && n > 0 && n % 16 == 0,
             "k " + std::to_string(k) + " and n " + std::to_string(n) +
                 " must be multiples of 16 and not 0");
  check.ContiguousTensor("a", a, Shape{m, k}, {DType::kF8E4M3, DType::kF8E5M2});
  check.ContiguousTensor("b", b, Shape{n, k}, {DType::kF8E4M3, DType::kF8E5M2});
  check.That(a.dtype == DType::kF8E4M3 || b.dtype == DType::kF8E4M3, "a and b are both f8_e5m2");
  check.ContiguousTensor("a's inverse_scale", args.a.inverse_scale, Shape{1}, {DType::kF32});
  check.ContiguousTensor("b's inverse_scale", args.b.inverse_scale, Shape{1}, {DType::kF32});
  check.ContiguousTensor("c", args.c, Shape{m, n}, {DType::kBF16, DType::kF32});
  check.That(Aligned(a) && Aligned(b) && Aligned(args.c) && Aligned(args.a.inverse_scale) &&
                 Aligned(args.b.inverse_scale),
             "a, b, their scales and c must begin at multiples of 16 bytes");
  if (args.bias) {
    check.ContiguousTensor("bias", args.bias, Shape{n}, {DType::kBF16});
    check.That(args.c.dtype == DType::kBF16, "a bias goes with bf16 c");
  }
  if (args.accumulate) check.That(args.c.dtype == DType::kF32, "only f32 c is added to");
  return check.status();
}

}  // namespace weft::kernels
