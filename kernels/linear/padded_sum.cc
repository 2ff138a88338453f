#include "kernels/linear/padded_sum.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/elementwise/elementwise_simd.h"

namespace weft::kernels::cpu {
namespace {

// Rows of the left matrix are copied, as many at a time as this holds.
constexpr int64_t kLeftBytes = int64_t{16} << 20;

constexpr int64_t kCopyGrain = 64;

// Uses of scratch memory.
struct LeftWhole;
struct LeftRest;
struct RightRest;
struct Sums;

// Copies rows of `columns` numbers, without gaps between them and filled up with zeros to `width`.
void CopyPadded(const BFloat16* from, int64_t stride, int64_t rows, int64_t columns, int64_t width,
                BFloat16* to) {
  ParallelFor(rows, kCopyGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(from + r * stride, columns, to + r * width);
      std::fill_n(to + r * width + columns, width - columns, BFloat16());
    }
  });
}

// The last `rest` rows of a matrix that is summed over its rows, and rows of zeros below them.
const BFloat16* PaddedRows(const BFloat16* rows, int64_t stride, int64_t rest, int64_t columns,
                           BFloat16* to) {
  CopyPadded(rows, stride, rest, columns, columns, to);
  std::fill_n(to + rest * columns, (kSumMultiple - rest) * columns, BFloat16());
  return to;
}

const BFloat16* RestOfRight(const MatmulShape& shape, const MatmulRight& b, SumParts parts) {
  if (b.rest != nullptr) return static_cast<const BFloat16*>(b.rest);
  const auto* rows = static_cast<const BFloat16*>(b.data) + parts.whole * shape.b_stride;
  auto* to = ThreadScratch<RightRest, BFloat16>(kSumMultiple * shape.n);
  return PaddedRows(rows, shape.b_stride, parts.rest, shape.n, to);
}

// The shapes of the two calls.
MatmulShape WholeShape(MatmulShape shape, SumParts parts) {
  shape.k = parts.whole;
  return shape;
}

MatmulShape RestShape(MatmulShape shape, SumParts parts) {
  shape.k = kSumMultiple;
  shape.a_stride = shape.a_transposed ? shape.m : kSumMultiple;
  shape.b_stride = shape.n;
  if (parts.whole > 0) {
    shape.bias = false;
    shape.accumulate = true;
  }
  return shape;
}

// Both matrices are summed over their rows.
Status SumOverRows(const MatmulShape& shape, const BFloat16* a, const MatmulRight& b, float* c,
                   const LibraryProduct& run) {
  const SumParts parts = SplitSum(shape.input, shape.k);
  if (parts.whole > 0) {
    WEFT_RETURN_IF_ERROR(run(WholeShape(shape, parts), a, b.data, nullptr, c));
  }
  auto* left = ThreadScratch<LeftRest, BFloat16>(kSumMultiple * shape.m);
  return run(
      RestShape(shape, parts),
      PaddedRows(a + parts.whole * shape.a_stride, shape.a_stride, parts.rest, shape.m, left),
      RestOfRight(shape, b, parts), nullptr, c);
}

// Some rows of a: `shape.m` of them.
Status SumOverColumns(const MatmulShape& shape, const BFloat16* a, const MatmulRight& b,
                      const BFloat16* b_rest, const float* bias, void* c,
                      const LibraryProduct& run) {
  const SumParts parts = SplitSum(shape.input, shape.k);
  auto* rest = ThreadScratch<LeftRest, BFloat16>(shape.m * kSumMultiple);
  CopyPadded(a + parts.whole, shape.a_stride, shape.m, parts.rest, kSumMultiple, rest);
  if (parts.whole == 0) return run(RestShape(shape, parts), rest, b_rest, bias, c);

  auto* whole = ThreadScratch<LeftWhole, BFloat16>(shape.m * parts.whole);
  CopyPadded(a, shape.a_stride, shape.m, parts.whole, parts.whole, whole);
  MatmulShape dense = shape;
  dense.a_stride = parts.whole;
  if (shape.output == DType::kF32) {
    WEFT_RETURN_IF_ERROR(run(WholeShape(dense, parts), whole, b.data, bias, c));
    return run(RestShape(dense, parts), rest, b_rest, nullptr, c);
  }
  auto* sums = ThreadScratch<Sums, float>(shape.m * shape.n);
  const ElementwiseLoops<BFloat16>& loops = PickElementwiseKernels().Of<BFloat16>();
  auto* rounded = static_cast<BFloat16*>(c);
  auto each_row = [&](auto&& convert) {
    ParallelFor(shape.m, kCopyGrain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        convert(rounded + r * shape.c_stride, sums + r * shape.n);
      }
    });
  };
  if (shape.accumulate) {
    each_row([&](BFloat16* row, float* sum) { loops.to_f32(row, sum, shape.n); });
  }
  dense.output = DType::kF32;
  dense.c_stride = shape.n;
  WEFT_RETURN_IF_ERROR(run(WholeShape(dense, parts), whole, b.data, bias, sums));
  WEFT_RETURN_IF_ERROR(run(RestShape(dense, parts), rest, b_rest, nullptr, sums));
  each_row([&](BFloat16* row, float* sum) { loops.from_f32(sum, row, shape.n); });
  return OkStatus();
}

}  // namespace

SumParts SplitSum(DType input, int64_t k) {
  const int64_t rest = input == DType::kBF16 ? k % kSumMultiple : 0;
  return {k - rest, rest};
}

Status RunPaddedSum(const MatmulShape& shape, const void* a, const MatmulRight& b,
                    const float* bias, void* c, const LibraryProduct& run) {
  const auto* left = static_cast<const BFloat16*>(a);
  if (shape.a_transposed) {
    WEFT_CHECK(shape.output == DType::kF32, "sums over rows are f32");
    return SumOverRows(shape, left, b, static_cast<float*>(c), run);
  }
  const BFloat16* b_rest = RestOfRight(shape, b, SplitSum(shape.input, shape.k));
  const int64_t most = std::max<int64_t>(kLeftBytes / (shape.k * 2), 1);
  const int64_t calls = (shape.m + most - 1) / most;
  for (int64_t i = 0; i < calls; ++i) {
    const int64_t row = shape.m * i / calls;
    MatmulShape part = shape;
    part.m = shape.m * (i + 1) / calls - row;
    auto* to = static_cast<char*>(c) +
               row * shape.c_stride * static_cast<int64_t>(DTypeSize(shape.output));
    WEFT_RETURN_IF_ERROR(
        SumOverColumns(part, left + row * shape.a_stride, b, b_rest, bias, to, run));
  }
  return OkStatus();
}

}  // namespace weft::kernels::cpu
