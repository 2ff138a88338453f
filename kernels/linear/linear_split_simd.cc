#include "kernels/linear/linear_split_simd.h"

#include "kernels/linear/linear_tiles.h"

namespace weft::kernels::cpu::avx512_bf16 {
namespace {

// Elements of 32 x 32 numbers: pairs of tiles of the first, the second and the third part.
constexpr int64_t kSplitStep = kParts * kStep;

// Rows of a panel of b that stay in the first-level cache while blocks of a pass by it.
constexpr int64_t kNearDepth = 192;

struct Parts {
  VecU part[kParts];
  VecU first;  // NaN and infinity are here alone
};

// Splits numbers; kAny: those without a finite first part, too.
template <bool kAny>
WEFT_INLINE Parts SplitNumbers(VecF x) {
  constexpr uint32_t kHigh = 0xffff0000, kHalf = 0x8000, kMagnitude = 0x7fffffff;
  constexpr uint32_t kInfinity = 0x7f800000, kQuiet = 0x400000;
  auto bits = reinterpret_cast<VecU>(x);
  Parts p;
  p.part[0] = (bits + kHalf) & kHigh;
  if (kAny) {
    // The largest numbers are truncated: rounded they would be infinite.
    p.part[0] = (p.part[0] & kMagnitude) < kInfinity ? p.part[0] : bits & kHigh;
    const VecI finite = (bits & kMagnitude) < kInfinity;
    const VecI nan = (bits & kMagnitude) > kInfinity;
    p.first = finite ? p.part[0] : (bits & kHigh) | (nan ? VecU{} + kQuiet : VecU{});
    p.part[0] = finite ? p.part[0] : VecU{};
    x = finite ? x : VecF{};
  }
  VecF rest = x - reinterpret_cast<VecF>(p.part[0]);
  p.part[1] = (reinterpret_cast<VecU>(rest) + kHalf) & kHigh;
  // At most 8 bits are left.
  p.part[2] = reinterpret_cast<VecU>(rest - reinterpret_cast<VecF>(p.part[1]));
  return p;
}

// Stores bf16 in the upper halves of words: of `high` there, of `low` in the lower halves.
WEFT_INLINE void StorePairs(BFloat16* to, VecU low, VecU high) {
  StoreLine<false>(to, reinterpret_cast<__m512i>(low >> 16 | high));
}

// Splits 16 x 32 numbers into a tile of each part: word w of row r holds those of k and k + 16,
// where `kTranspose` with k = r, and else with k = w. They are the vectors at[r * stride], and
// those `high` elements behind them for k + 16; this many of each are there. `check` becomes NaN
// when a first part may not be finite.
template <bool kTranspose, bool kAny, class T>
WEFT_INLINE void SplitTile(const T* at, int64_t stride, int64_t high, int64_t low_rows,
                           int64_t high_rows, BFloat16* parts, BFloat16* first, VecF* check) {
  __m512i low[16], upper[16];
  for (int64_t r = 0; r < 16; ++r) {
    const T* row = at + r * stride;
    low[r] = r < low_rows ? reinterpret_cast<__m512i>(Load(row)) : __m512i{};
    upper[r] = r < high_rows ? reinterpret_cast<__m512i>(Load(row + high)) : __m512i{};
  }
  if (kTranspose) {
    Transpose16(low);
    Transpose16(upper);
  }
  for (int64_t r = 0; r < 16; ++r) {
    const Parts l = SplitNumbers<kAny>(reinterpret_cast<VecF>(low[r]));
    const Parts h = SplitNumbers<kAny>(reinterpret_cast<VecF>(upper[r]));
    for (int64_t i = 0; i < kParts; ++i) {
      StorePairs(parts + i * kStep + r * kBlock, l.part[i], h.part[i]);
    }
    if (kAny) {
      StorePairs(first + r * kBlock, l.first, h.first);
    } else {
      *check = Fma(reinterpret_cast<VecF>(l.part[2]), reinterpret_cast<VecF>(h.part[2]), *check);
    }
  }
}

template <bool kTranspose, bool kAny, class T>
bool SplitRange(const StoredOperand& s, int64_t begin, int64_t end, int64_t k_begin, int64_t depth,
                BFloat16* parts, BFloat16* first) {
  const auto* data = static_cast<const T*>(s.data);
  const int64_t steps = depth / kBlock;
  VecF check = {};
  auto step = [&](int64_t block, int64_t k) {
    const int64_t i = block * kBlock;
    const int64_t target = (block - begin) * steps + (k - k_begin) / kBlock;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t row = s.sum_in_rows ? i + 16 * half : k;
      const int64_t column = s.sum_in_rows ? k : i + 16 * half;
      const int64_t high = s.sum_in_rows ? 16 : 16 * s.stride;
      SplitTile<kTranspose, kAny>(data + row * s.stride + column, s.stride, high, s.rows - row,
                                  s.rows - row - (s.sum_in_rows ? 0 : 16),
                                  parts + target * kSplitStep + half * kTile,
                                  kAny ? first + target * kStep + half * kTile : nullptr, &check);
    }
  };
  // Along the rows.
  if (s.sum_in_rows) {
    for (int64_t block = begin; block < end; ++block) {
      for (int64_t k = k_begin; k < k_begin + depth; k += kBlock) step(block, k);
    }
  } else {
    for (int64_t k = k_begin; k < k_begin + depth; k += kBlock) {
      for (int64_t block = begin; block < end; ++block) step(block, k);
    }
  }
  return !kAny && _mm512_cmp_ps_mask(check, check, _CMP_UNORD_Q) != 0;
}

template <class T>
bool SplitOf(const StoredOperand& s, bool left, int64_t begin, int64_t end, int64_t k_begin,
             int64_t depth, BFloat16* parts, BFloat16* first) {
  const bool transpose = left != s.sum_in_rows;
  if (first != nullptr) {
    return transpose ? SplitRange<true, true, T>(s, begin, end, k_begin, depth, parts, first)
                     : SplitRange<false, true, T>(s, begin, end, k_begin, depth, parts, first);
  }
  return transpose ? SplitRange<true, false, T>(s, begin, end, k_begin, depth, parts, first)
                   : SplitRange<false, false, T>(s, begin, end, k_begin, depth, parts, first);
}

template <bool kNear>
WEFT_INLINE void LoadRight(const BFloat16* b) {
  if (kNear) {
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kTile, 64);
  } else {
    _tile_stream_loadd(6, b, 64);
    _tile_stream_loadd(7, b + kTile, 64);
  }
}

// a is read past the first-level cache, which belongs to b.
WEFT_INLINE void LoadLeft(const BFloat16* a) {
  _tile_stream_loadd(4, a, 64);
  _tile_stream_loadd(5, a + kTile, 64);
}

WEFT_INLINE void MultiplyTiles() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// One step of 32 of k: six products, in an order in which each needs one new pair of tiles and the
// largest comes last.
template <bool kNear>
WEFT_INLINE void MultiplyStep(const BFloat16* a, const BFloat16* b, const BFloat16* a_first,
                              const BFloat16* b_first) {
  LoadRight<true>(b);
  LoadLeft(a + 2 * kStep);
  MultiplyTiles();  // a3 b1
  LoadLeft(a + kStep);
  MultiplyTiles();  // a2 b1
  LoadRight<kNear>(b + kStep);
  MultiplyTiles();  // a2 b2
  LoadLeft(a);
  MultiplyTiles();  // a1 b2
  LoadRight<kNear>(b + 2 * kStep);
  MultiplyTiles();  // a1 b3
  if (a_first != a) LoadLeft(a_first);
  LoadRight<true>(b_first);
  MultiplyTiles();  // a1 b1
}

// What is fetched into the second-level cache while a block is multiplied: lines of the next panel
// of b, this many a step, and what the result will be added to.
template <class T>
struct Ahead {
  const BFloat16* b = nullptr;
  int64_t lines = 0;
  const T* c = nullptr;
  int64_t c_stride = 0;
};

// One block of 32 x 32, left in `to`. Meanwhile the previous block's result is written, so that the
// tile unit does not wait.
template <bool kBias, WriteMode kMode, class T>
WEFT_INLINE void MultiplyBlock(const SplitProduct& p, const SplitOperand& a, const SplitOperand& b,
                               float* to, Ahead<T> ahead, Result<T>& previous) {
  const int64_t steps = p.depth / kBlock;
  const int64_t rows_per_step = (kBlock + steps - 1) / steps;
  const BFloat16 *a_first = a.first, *b_first = b.first, *a_parts = a.parts, *b_parts = b.parts;
  const int64_t a_step = p.a.first == nullptr ? kSplitStep : kStep;
  const int64_t b_step = p.b.first == nullptr ? kSplitStep : kStep;
  LoadSums(nullptr);
  for (int64_t i = 0; i < steps; ++i) {
    if (i < kNearDepth / kBlock) {
      MultiplyStep<true>(a_parts, b_parts, a_first, b_first);
    } else {
      MultiplyStep<false>(a_parts, b_parts, a_first, b_first);
    }
    a_parts += kSplitStep;
    b_parts += kSplitStep;
    a_first += a_step;
    b_first += b_step;
    for (int64_t line = 0; line < ahead.lines; ++line, ahead.b += kBlock) {
      _mm_prefetch(ahead.b, _MM_HINT_T1);
    }
    if (kMode == WriteMode::kAccumulate) {
      for (int64_t row = 0; row < rows_per_step; ++row, ahead.c += ahead.c_stride) {
        _mm_prefetch(ahead.c, _MM_HINT_T1);
        _mm_prefetch(ahead.c + kBlock - 1, _MM_HINT_T1);
      }
    }
    WriteRows<kBias, kMode>(previous, rows_per_step);
  }
  StoreSums(to);
}

// The part of it that begins with `block` of 32 rows or columns.
WEFT_INLINE SplitOperand BlockOf(const SplitOperand& operand, int64_t block, int64_t depth) {
  const BFloat16* parts = operand.parts + block * depth / kBlock * kSplitStep;
  return {parts, operand.first == nullptr ? parts : operand.first + block * depth / kBlock * kStep};
}

template <bool kBias, WriteMode kMode, class T>
void MultiplyAll(const SplitProduct& p, T* c) {
  alignas(64) TileConfig config = {};
  _tile_loadconfig(&config);
  alignas(64) float blocks[2][kBlock * kBlock];
  Result<T> previous;
  int parity = 0;
  // What a panel's next is fetched ahead by while blocks of rows pass by this one.
  constexpr int64_t kFewestBlocks = 4;
  const int64_t row_blocks = (p.rows + kBlock - 1) / kBlock;
  const int64_t panel_lines = kParts * p.depth;
  for (int64_t panel = 0; panel < p.panels; ++panel) {
    const SplitOperand b = BlockOf(p.b, panel, p.depth);
    const BFloat16* next_b = BlockOf(p.b, panel + 1, p.depth).parts;
    Ahead<T> ahead = {.b = next_b, .lines = 0, .c_stride = p.c_stride};
    if (row_blocks >= kFewestBlocks && panel + 1 < p.panels) {
      ahead.lines = (kParts * kBlock - 1) / row_blocks + 1;
    }
    for (int64_t block = 0; block < row_blocks; ++block) {
      const int64_t row = block * kBlock;
      ahead.c = c + row * p.c_stride + panel * kBlock;
      if (ahead.b >= next_b + panel_lines * kBlock) ahead.lines = 0;
      MultiplyBlock<kBias, kMode>(p, BlockOf(p.a, block, p.depth), b, blocks[parity], ahead,
                                  previous);
      ahead.b += ahead.lines * p.depth;
      WriteRows<kBias, kMode>(previous, kBlock);
      previous = {.block = blocks[parity],
                  .rows = p.rows - row < kBlock ? p.rows - row : kBlock,
                  .bias = kBias ? p.bias + panel * kBlock : nullptr,
                  .c = c + row * p.c_stride + panel * kBlock,
                  .c_stride = p.c_stride};
      parity ^= 1;
    }
  }
  WriteRows<kBias, kMode>(previous, kBlock);
  _tile_release();
  if (kMode == WriteMode::kStream) _mm_sfence();
}

template <class T>
void MultiplyTo(const SplitProduct& p, T* c) {
  const bool stream =
      p.stream && Streams(c, p.c_stride, p.rows, p.panels * kBlock, int64_t{sizeof *c});
  if (p.accumulate) {
    MultiplyAll<false, WriteMode::kAccumulate>(p, c);
  } else if (p.bias != nullptr && stream) {
    MultiplyAll<true, WriteMode::kStream>(p, c);
  } else if (p.bias != nullptr) {
    MultiplyAll<true, WriteMode::kStore>(p, c);
  } else if (stream) {
    MultiplyAll<false, WriteMode::kStream>(p, c);
  } else {
    MultiplyAll<false, WriteMode::kStore>(p, c);
  }
}

}  // namespace

bool Split(const StoredOperand& source, bool left, int64_t begin, int64_t end, int64_t k_begin,
           int64_t depth, BFloat16* parts, BFloat16* first) {
  if (source.dtype == DType::kBF16) {
    return SplitOf<BFloat16>(source, left, begin, end, k_begin, depth, parts, first);
  }
  if (source.dtype == DType::kF16) {
    return SplitOf<Half>(source, left, begin, end, k_begin, depth, parts, first);
  }
  return SplitOf<float>(source, left, begin, end, k_begin, depth, parts, first);
}

void MultiplySplit(const SplitProduct& p) {
  if (p.c_f32 != nullptr) {
    MultiplyTo(p, p.c_f32);
  } else {
    MultiplyTo(p, p.c_f16);
  }
}

}  // namespace weft::kernels::cpu::avx512_bf16
