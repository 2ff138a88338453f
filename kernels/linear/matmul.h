#pragma once

#include <cstdint>

#include "common/status.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// c = a b (+ bias) or c += a b on oneDNN, for row-major matrices: a [m, k], b [k, n], c [m, n].
/// With a_transposed, c is f32 and there is no bias.
struct MatmulShape {
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;
  DType input = DType::kF32;   ///< of a and b: f32 or bf16
  DType output = DType::kF32;  ///< of c: f32 or bf16
  int64_t a_stride = 0;        ///< Elements between rows of a.
  bool a_transposed = false;   ///< a is stored as [k, m].
  int64_t b_stride = 0;        ///< Elements between rows of b; 0: b is a PackedMatrix.
  int64_t c_stride = 0;        ///< Elements between rows of c.
  bool bias = false;           ///< Adds a row vector [n] f32.
  bool accumulate = false;     ///< c += instead of c =.

  bool operator==(const MatmulShape&) const = default;
};

/// The right-hand matrix of a product: `data` alone, or a PackedMatrix::view().
struct MatmulRight {
  const void* data = nullptr;
  const void* rest = nullptr;  ///< What a packed matrix has for the rest of a sum (padded_sum.h).
};

/// Whether oneDNN multiplies bf16 matrices on this CPU: where that has instructions for it, and the
/// first call of this in the process finds that it does so correctly; else it logs an error, and
/// callers use f32. With AVX-512 alone oneDNN emulates these products, at a third of the rate of
/// f32.
bool MatmulHasBf16();

/// The right-hand matrix b [k, n] of a product in the layout oneDNN prefers for it.
class PackedMatrix {
 public:
  /// Room for a matrix of f32 or bf16, without contents; memory that is large enough is kept.
  /// kExhausted when there is none.
  Status Reset(int64_t k, int64_t n, DType dtype);

  /// Fills it from elements of type `dtype` (f32, or bf16 where MatmulHasBf16()): b[i, j] is at
  /// i * row_stride + j * column_stride. One of the strides is 1.
  Status Pack(const void* from, DType dtype, int64_t row_stride, int64_t column_stride);

  /// The two parts of the matrix as Matmul() takes them.
  MatmulRight view() const;
  int64_t bytes() const { return bytes_; }

 private:
  void* rest() const;

  int64_t k_ = 0;
  int64_t n_ = 0;
  DType dtype_ = DType::kF32;
  AlignedMemory memory_;
  int64_t bytes_ = 0;        // of memory_
  int64_t whole_bytes_ = 0;  // of the part that is packed; behind it is the rest of the sum
};

/// Runs one product; `bias` is null unless shape.bias. Whatever the sizes, oneDNN only gets sums of
/// lengths that it computes correctly (padded_sum.h). Primitives are kept in a bounded cache
/// shared by all threads; scratch memory belongs to the calling thread. Thread-safe. kInternal when
/// oneDNN refuses, kExhausted when it finds no memory.
Status Matmul(const MatmulShape& shape, const void* a, const MatmulRight& b, const float* bias,
              void* c);

}  // namespace weft::kernels::cpu
