#pragma once

#include <cstdint>

#include "kernels/cpu/float_types.h"

namespace weft::kernels::cpu {

/// Longest sum of a product: of it a sliver of b stays in the first-level cache, while those of a
/// pass over it.
inline constexpr int64_t kMostF32Depth = 320;

/// Products of f32 matrices, in the manner of Goto and van de Geijn (2008, "Anatomy of
/// High-Performance Matrix Multiplication"). Lines of an operand, rows of the left one and columns
/// of the right one, are packed into slivers of as many as a block of c has that is summed in
/// registers: for each number k of the sum, those of the sliver's lines side by side, with zeros
/// for lines that are missing from the last sliver.
template <class T>
struct PackLoops {
  /// Packs lines [0, lines) over [0, depth), at most kMostF32Depth, element k of a line at from[k *
  /// stride + line]. With `sums`, adds those of the lines to it, in the order of k.
  void (*across)(const T* from, int64_t stride, int64_t lines, int64_t depth, float* to,
                 float* sums);
  /// Likewise, at from[line * stride + k].
  void (*along)(const T* from, int64_t stride, int64_t lines, int64_t depth, float* to);
};

/// Memory that is needed soon: this many lines of this many bytes.
struct Upcoming {
  const char* at = nullptr;
  int64_t stride = 0;  ///< bytes between lines
  int64_t lines = 0;
  int64_t line_bytes = 0;
};

/// A block of c, of packed operands.
struct F32Product {
  const float* a;
  const float* b;
  int64_t depth;
  int64_t rows;
  int64_t columns;
  const float* bias;  ///< [columns], or null
  float* c;           ///< [rows, columns]
  int64_t c_stride;
  bool accumulate;    ///< c += instead of c =; not together with a bias
  Upcoming upcoming;  ///< is brought into the cache meanwhile
};

struct F32Kernels {
  int64_t rows, columns;  ///< of a sliver of the left and of the right operand
  FloatTypes<PackLoops> left, right;
  void (*multiply)(const F32Product& product);
};

// Wider vectors have no need of them: oneDNN is as fast there.
namespace baseline {
extern const F32Kernels kF32Kernels;
}
namespace avx2 {
extern const F32Kernels kF32Kernels;
}

}  // namespace weft::kernels::cpu
