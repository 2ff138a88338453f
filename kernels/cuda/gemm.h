#pragma once

#include <string_view>

#include "common/status.h"
#include "kernels/activation/activation.h"
#include "kernels/stream.h"

namespace weft::kernels::cuda {

/// What a product, with its bias, becomes.
enum class GemmGelu : uint8_t {
  kNone,
  kForward,   ///< before = product, c = GELU(before)
  kGradient,  ///< c = product * GELU'(before), and, unless it is none, again = GELU(before)
};

/// c = alpha a b + beta plus on cuBLASLt, of matrices with at least one element. Rows may be
/// strided. a and b are of one type; c is of it, too, or f32. Sums are f32, and f32 operands are
/// multiplied as such (not as TF32). c overlaps neither a nor b.
///
/// FP8 values (of two types, but not both E5M2) stand for numbers times a scale that lies on the
/// device; a is not transposed and b is, k and n are multiples of 16, a, b and c have rows at
/// multiples of 16 bytes, and c is bf16 or f32.
struct GemmArgs {
  TensorView a;  ///< [m, k], or [k, m] when transposed
  TensorView b;  ///< [k, n], or [n, k] when transposed
  TensorView c;  ///< [m, n]
  bool a_transposed = false;
  bool b_transposed = false;
  float alpha = 1;
  float beta = 0;           ///< At 0, `plus` is not read.
  TensorView plus = {};     ///< [m, n] of c's type; c itself where there is none
  TensorView bias = {};     ///< [n] f32 or of c's type, or none: added to each row of c, rounded to
                            ///< c's type
  TensorView a_sums = {};   ///< [m] f32, or none: the sums of a over k, of an a that is transposed
  bool add_a_sums = false;  ///< a_sums += instead of a_sums =.
  GemmGelu gelu = GemmGelu::kNone;  ///< Otherwise beta is 0, there are no sums, and c, `before` and
                                    ///< `again` are contiguous and of one type.
  GeluForm gelu_form = GeluForm::kTanh;
  TensorView before = {};          ///< [m, n]
  TensorView again = {};           ///< [m, n]
  const float* a_scale = nullptr;  ///< Of FP8 values.
  const float* b_scale = nullptr;
  bool fast_sums = false;  ///< Of FP8: sums may have fewer bits.
};

/// Bias, sums and GELU are fused into the product where cuBLASLt can; GELU in its tanh form only,
/// and from Hopper on, since before a fused product takes longer than two passes. It is then of
/// values that are not rounded in between. On one model of device and with one
/// version of the library it gives the same bits each time: of the ways to split a sum only that
/// with a separate step at the end is allowed. How to compute a product of these sizes, strides,
/// alignments and types is found once and kept with the stream. Errors carry the name of `op`:
/// kInvalid for a size past 32 bits, kInternal with the library's reason.
Status Gemm(const Stream& stream, std::string_view op, const GemmArgs& args);

}  // namespace weft::kernels::cuda
