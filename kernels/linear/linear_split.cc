#include <algorithm>
#include <atomic>
#include <memory>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/linear/linear_split_simd.h"
#include "kernels/linear/stored_weight.h"

namespace weft::kernels::cpu {
namespace {

using avx512_bf16::EvenPart;
using avx512_bf16::kBlock;
using avx512_bf16::SplitOperand;

// Bytes of a split number.
constexpr int64_t kSplitBytes = avx512_bf16::kParts * int64_t{sizeof(BFloat16)};

// Longest sum that runs in the tiles at once; of results that are narrower than the sums, which
// then need no room of their own.
constexpr int64_t kMaxDepth = 512;
constexpr int64_t kMaxNarrowDepth = 1024;

// Split rows of a that stay in a thread's second-level cache while panels of b pass by, and split
// columns of b, which all threads share.
constexpr int64_t kLeftBytes = 1 << 20;
constexpr int64_t kRightBytes = 8 << 20;

// Uses of scratch memory.
struct Left;
struct LeftFirst;
struct Right;
struct RightFirst;

// A part of a product: this many columns over so much of k, with b split.
struct Part {
  const StoredProduct& product;
  SplitOperand b;
  int64_t k_begin, depth, column;
};

// Rows [row_begin, row_end) times panels [begin, end) of a part.
void MultiplyRange(const Part& part, int64_t row_begin, int64_t row_end, int64_t begin,
                   int64_t end) {
  const StoredProduct& p = part.product;
  const int64_t group = EvenPart(row_end - row_begin, kLeftBytes / (kSplitBytes * part.depth));
  const int64_t column = part.column + begin * kBlock;
  const int64_t panel = part.depth * kBlock;
  SplitOperand b = {.parts = part.b.parts + begin * panel * avx512_bf16::kParts, .first = nullptr};
  if (part.b.first != nullptr) b.first = part.b.first + begin * panel;
  auto* parts = ThreadScratch<Left, BFloat16>(group * part.depth * avx512_bf16::kParts);
  for (int64_t row = row_begin; row < row_end; row += group) {
    const int64_t rows = std::min(group, row_end - row);
    const int64_t first_block = row / kBlock, last_block = (row + rows + kBlock - 1) / kBlock;
    SplitOperand a = {.parts = parts, .first = nullptr};
    if (avx512_bf16::Split(p.a, true, first_block, last_block, part.k_begin, part.depth, parts,
                           nullptr)) {
      auto* first = ThreadScratch<LeftFirst, BFloat16>(group * part.depth);
      avx512_bf16::Split(p.a, true, first_block, last_block, part.k_begin, part.depth, parts,
                         first);
      a.first = first;
    }
    const bool f32 = p.c.dtype == DType::kF32;
    const int64_t at = row * p.c.row_stride + column;
    avx512_bf16::MultiplySplit(
        {.a = a,
         .b = b,
         .depth = part.depth,
         .rows = rows,
         .panels = end - begin,
         .bias = part.k_begin > 0 || p.bias == nullptr ? nullptr : p.bias + column,
         .c_f32 = f32 ? p.c.As<float>() + at : nullptr,
         .c_f16 = f32 ? nullptr : p.c.As<Half>() + at,
         .c_stride = p.c.row_stride,
         .accumulate = p.accumulate || part.k_begin > 0,
         .stream = part.depth == p.k});
  }
}

// Splits `panels` of b for all threads.
SplitOperand SplitRight(const StoredProduct& p, int64_t k_begin, int64_t depth, int64_t column,
                        int64_t panels) {
  const int64_t panel = depth * kBlock, first_panel = column / kBlock;
  auto* parts = ThreadScratch<Right, BFloat16>(panels * panel * avx512_bf16::kParts);
  auto split = [&](BFloat16* first) {
    std::atomic<bool> again = false;
    ParallelFor(panels, 1, [&](int64_t begin, int64_t end) {
      if (avx512_bf16::Split(p.b, false, first_panel + begin, first_panel + end, k_begin, depth,
                             parts + begin * panel * avx512_bf16::kParts,
                             first == nullptr ? nullptr : first + begin * panel)) {
        again = true;
      }
    });
    return again.load();
  };
  if (!split(nullptr)) return {.parts = parts, .first = nullptr};
  auto* first = ThreadScratch<RightFirst, BFloat16>(panels * panel);
  split(first);
  return {.parts = parts, .first = first};
}

// c = a b (+ bias), or c += a b: parts of b one after the other, each times rows or, when these are
// few, columns spread over the threads.
void RunParts(const StoredProduct& p) {
  const bool f32 = p.c.dtype == DType::kF32;
  const int64_t max_depth = EvenPart(p.k, f32 ? kMaxDepth : kMaxNarrowDepth);
  for (int64_t k_begin = 0; k_begin < p.k; k_begin += max_depth) {
    const int64_t depth = std::min(max_depth, p.k - k_begin);
    const int64_t columns = EvenPart(p.n, kRightBytes / (kSplitBytes * depth));
    for (int64_t column = 0; column < p.n; column += columns) {
      const int64_t panels = std::min(columns, p.n - column) / kBlock;
      const Part part = {.product = p,
                         .b = SplitRight(p, k_begin, depth, column, panels),
                         .k_begin = k_begin,
                         .depth = depth,
                         .column = column};
      const int64_t blocks = (p.m + kBlock - 1) / kBlock;
      if (blocks >= 2 * Threads() || blocks >= panels) {
        ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
          MultiplyRange(part, begin * kBlock, std::min(end * kBlock, p.m), 0, panels);
        });
      } else {
        ParallelFor(panels, 1,
                    [&](int64_t begin, int64_t end) { MultiplyRange(part, 0, p.m, begin, end); });
      }
    }
  }
}

void Run(const StoredProduct& p) {
  if (p.c.dtype == DType::kF32 || p.k <= kMaxNarrowDepth) return RunParts(p);
  RunAndRound(p, RunParts);
}

}  // namespace

bool SplitServes(int64_t out_features, int64_t in_features, DType compute) {
  return compute != DType::kBF16 && ActiveIsa() >= Isa::kAmx && out_features % kBlock == 0 &&
         in_features % kBlock == 0;
}

std::unique_ptr<CpuWeight> NewSplitWeight(int64_t out_features, int64_t in_features,
                                          DType compute) {
  return NewStoredWeight(out_features, in_features, compute, Run);
}

void SplitBackwardWeight(const TensorView& x, const TensorView& dy, const TensorView& dweight,
                         bool accumulate) {
  RunParts({.a = StoredAs(dy, false),
            .b = StoredAs(x, false),
            .m = dy.shape[1],
            .k = (x.shape[0] + kBlock - 1) / kBlock * kBlock,
            .n = x.shape[1],
            .bias = nullptr,
            .c = dweight,
            .accumulate = accumulate});
}

}  // namespace weft::kernels::cpu
