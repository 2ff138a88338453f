#include <algorithm>
#include <memory>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/linear/linear_f32_simd.h"
#include "kernels/linear/stored_weight.h"

namespace weft::kernels::cpu {
namespace {

// Packed rows of a that stay in a thread's second-level cache while columns of b pass by, and
// packed columns of b, which all threads share and read from wherever they are.
constexpr int64_t kLeftBytes = 320 << 10;
constexpr int64_t kRightBytes = 32 << 20;

// Uses of scratch memory.
struct Left;
struct Right;

constexpr int64_t Parts(int64_t count, int64_t most) {
  return (count + most - 1) / most;
}

// `count` in equal parts of at most `most`, if that is so much, each a multiple of `unit`.
constexpr int64_t EvenPart(int64_t count, int64_t most, int64_t unit) {
  const int64_t parts = Parts(count, std::max(most / unit, int64_t{1}) * unit);
  return Parts(Parts(count, parts), unit) * unit;
}

// A part of an operand: this many lines, rows of a left one and columns of a right one, over so
// much of the sum.
struct Piece {
  int64_t line, lines, k, depth;
};

void Pack(const FloatTypes<PackLoops>& loops, const StoredOperand& operand, const Piece& piece,
          float* to, float* sums = nullptr) {
  WithFloatType(operand.dtype, [&]<class T>() {
    const auto* data = static_cast<const T*>(operand.data);
    const int64_t stride = operand.stride;
    if (operand.sum_in_rows) {
      loops.Of<T>().along(data + piece.line * stride + piece.k, stride, piece.lines, piece.depth,
                          to);
    } else {
      loops.Of<T>().across(data + piece.k * stride + piece.line, stride, piece.lines, piece.depth,
                           to, sums);
    }
  });
}

Upcoming UpcomingOf(const StoredOperand& operand, const Piece& piece) {
  const auto size = static_cast<int64_t>(DTypeSize(operand.dtype));
  const int64_t row = operand.sum_in_rows ? piece.line : piece.k;
  const int64_t column = operand.sum_in_rows ? piece.k : piece.line;
  return {.at = static_cast<const char*>(operand.data) + (row * operand.stride + column) * size,
          .stride = operand.stride * size,
          .lines = operand.sum_in_rows ? piece.lines : piece.depth,
          .line_bytes = (operand.sum_in_rows ? piece.depth : piece.lines) * size};
}

// Part of a product: some columns over some of k, with b packed.
struct Part {
  const StoredProduct& product;
  float* a_sums;  // null, or [m]: gets the sums of a over k
  const float* b;
  int64_t k, depth, column;
};

// Rows [row, row_end) times columns [begin, end) of a part.
void MultiplyRange(const F32Kernels& kernels, const Part& part, int64_t row, int64_t row_end,
                   int64_t begin, int64_t end) {
  const StoredProduct& p = part.product;
  const int64_t most =
      EvenPart(row_end - row, kLeftBytes / (part.depth * int64_t{sizeof(float)}), kernels.rows);
  auto* a = ThreadScratch<Left, float>(most * part.depth);
  for (; row < row_end; row += most) {
    const Piece piece = {row, std::min(most, row_end - row), part.k, part.depth};
    Piece next = {row + most, std::min(most, row_end - row - most), part.k, part.depth};
    next.lines = std::max(next.lines, int64_t{0});
    Pack(kernels.left, p.a, piece, a, part.a_sums == nullptr ? nullptr : part.a_sums + row);
    const int64_t column = part.column + begin;
    kernels.multiply({.a = a,
                      .b = part.b + begin * part.depth,
                      .depth = part.depth,
                      .rows = piece.lines,
                      .columns = end - begin,
                      .bias = part.k > 0 || p.bias == nullptr ? nullptr : p.bias + column,
                      .c = p.c.As<float>() + row * p.c.row_stride + column,
                      .c_stride = p.c.row_stride,
                      .accumulate = p.accumulate || part.k > 0,
                      .upcoming = next.lines > 0 ? UpcomingOf(p.a, next) : Upcoming()});
  }
}

// Packs columns of b for all threads.
const float* PackRight(const F32Kernels& kernels, const StoredProduct& p, const Piece& piece) {
  const int64_t slivers = Parts(piece.lines, kernels.columns);
  auto* packed = ThreadScratch<Right, float>(slivers * kernels.columns * piece.depth);
  ParallelFor(slivers, 1, [&](int64_t begin, int64_t end) {
    begin *= kernels.columns;
    end = std::min(end * kernels.columns, piece.lines);
    Pack(kernels.right, p.b, {piece.line + begin, end - begin, piece.k, piece.depth},
         packed + begin * piece.depth);
  });
  return packed;
}

// c = a b (+ bias), or c += a b, and a_sums += sums of a over k: parts of b one after the other,
// each times rows or, when these are few, columns spread over the threads.
void RunWithSums(const StoredProduct& p, float* a_sums) {
  const F32Kernels& kernels = ActiveIsa() == Isa::kAvx2 ? avx2::kF32Kernels : baseline::kF32Kernels;
  const int64_t most_depth = EvenPart(p.k, kMostF32Depth, 1);
  for (int64_t k = 0; k < p.k; k += most_depth) {
    const int64_t depth = std::min(most_depth, p.k - k);
    const int64_t most_columns =
        EvenPart(p.n, kRightBytes / (depth * int64_t{sizeof(float)}), kernels.columns);
    for (int64_t column = 0; column < p.n; column += most_columns) {
      const int64_t columns = std::min(most_columns, p.n - column);
      const Part part = {.product = p,
                         .a_sums = column == 0 ? a_sums : nullptr,
                         .b = PackRight(kernels, p, {column, columns, k, depth}),
                         .k = k,
                         .depth = depth,
                         .column = column};
      const int64_t row_slivers = Parts(p.m, kernels.rows);
      const int64_t column_slivers = Parts(columns, kernels.columns);
      if (a_sums != nullptr || row_slivers >= 2 * Threads() || row_slivers >= column_slivers) {
        ParallelFor(row_slivers, 1, [&](int64_t begin, int64_t end) {
          MultiplyRange(kernels, part, begin * kernels.rows, std::min(end * kernels.rows, p.m), 0,
                        columns);
        });
      } else {
        ParallelFor(column_slivers, 1, [&](int64_t begin, int64_t end) {
          MultiplyRange(kernels, part, 0, p.m, begin * kernels.columns,
                        std::min(end * kernels.columns, columns));
        });
      }
    }
  }
}

void Run(const StoredProduct& p) {
  if (p.c.dtype != DType::kF32) return RunAndRound(p, Run);
  RunWithSums(p, nullptr);
}

}  // namespace

bool F32Serves() {
  return ActiveIsa() < Isa::kAvx512;
}

std::unique_ptr<CpuWeight> NewF32Weight(int64_t out_features, int64_t in_features, DType compute) {
  return NewStoredWeight(out_features, in_features, compute, Run);
}

void F32BackwardWeight(const TensorView& x, const TensorView& dy, const TensorView& dweight,
                       const TensorView& dbias, bool accumulate) {
  if (dbias && !accumulate) std::fill_n(dbias.As<float>(), dy.shape[1], 0.0f);
  RunWithSums({.a = StoredAs(dy, false),
               .b = StoredAs(x, false),
               .m = dy.shape[1],
               .k = x.shape[0],
               .n = x.shape[1],
               .bias = nullptr,
               .c = dweight,
               .accumulate = accumulate},
              static_cast<float*>(dbias.data));
}

}  // namespace weft::kernels::cpu
