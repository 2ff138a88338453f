#include "kernels/linear/linear_bf16_simd.h"

#include "kernels/linear/linear_gelu_tiles.h"
#include "kernels/linear/linear_tiles.h"

namespace weft::kernels::cpu::avx512_bf16 {
namespace {

// Longest sum that runs in the tiles at once; longer ones are cut into equal parts of at most
// kCutDepth, whose sums wait in the second-level cache. Of a panel of b, kNearDepth rows stay in
// the first-level cache while blocks of a pass by it; the rest comes from the second.
constexpr int64_t kWholeDepth = 768;
constexpr int64_t kCutDepth = 512;
constexpr int64_t kNearDepth = 576;

// What of a stays in the second-level cache while panels of b pass by: this many rows of it over so
// much of k. Longer sums are cut: b then passes by more rows at a time, hence fewer times, but sums
// wait, for this many panels. Where there are more panels than that a would be put into tiles again
// for each group of them, and only sums that are longer still are cut.
constexpr int64_t kResidentBytes = 768 << 10;
constexpr int64_t kResidentDepth = 1536;
constexpr int64_t kLongestDepth = 4096;
constexpr int64_t kWaitingPanels = 24;

constexpr int64_t kBlockSize = kBlock * kBlock;

WEFT_INLINE __m512i LoadBits(const void* from) {
  return _mm512_loadu_si512(from);
}

// 32 neighbours as bf16.
WEFT_INLINE __m512i Load32(const float* from) {
  return reinterpret_cast<__m512i>(
      _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from)));
}
WEFT_INLINE __m512i Load32(const BFloat16* from) {
  return LoadBits(from);
}

// Interleaves two rows of 32 bf16: pairs of columns 0..15 and of 16..31.
WEFT_INLINE void Interleave(__m512i even, __m512i odd, __m512i* low, __m512i* high) {
  __m512i a = _mm512_unpacklo_epi16(even, odd), b = _mm512_unpackhi_epi16(even, odd);
  const __m512i kLow = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const __m512i kHigh = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  *low = _mm512_permutex2var_epi64(a, kLow, b);
  *high = _mm512_permutex2var_epi64(a, kHigh, b);
}

// 32 columns of rows `row` and `row` + 1 interleaved, zero from row `rows` on. The rows of the next
// block are fetched meanwhile.
template <class T>
WEFT_INLINE void LoadPairs(const T* from, int64_t stride, int64_t row, int64_t rows, __m512i* low,
                           __m512i* high) {
  const T* at = from + row * stride;
  __m512i even = row < rows ? Load32(at) : __m512i{};
  __m512i odd = row + 1 < rows ? Load32(at + stride) : __m512i{};
  _mm_prefetch(at + kBlock * stride, _MM_HINT_T1);
  _mm_prefetch(at + (kBlock + 1) * stride, _MM_HINT_T1);
  Interleave(even, odd, low, high);
}

// What is fetched while a block is multiplied: into the second-level cache rows of the next panel
// of b, this many a step, and what the result will be added to or is the gradient's way on from;
// into the first the next block's sums.
template <class T>
struct Ahead {
  const BFloat16* b = nullptr;
  int64_t lines = 0;
  const float* sums = nullptr;
  const T* c = nullptr;
  int64_t c_stride = 0;
};

// One step: two rows of tiles of a times two tiles of b, over 32 of k. a is read past the
// first-level cache, which belongs to b, and b too where it is not `kNear`.
template <bool kNear>
WEFT_INLINE void MultiplyStep(const BFloat16* a, const BFloat16* b) {
  if (kNear) {
    _tile_loadd(6, b, 64);
  } else {
    _tile_stream_loadd(6, b, 64);
  }
  _tile_stream_loadd(4, a, 64);
  _tile_dpbf16ps(0, 4, 6);
  if (kNear) {
    _tile_loadd(7, b + kTile, 64);
  } else {
    _tile_stream_loadd(7, b + kTile, 64);
  }
  _tile_dpbf16ps(1, 4, 7);
  _tile_stream_loadd(5, a + kTile, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// One block of 32 x 32 over `depth` of k: starts from the sums `from` (null: zero) and leaves them
// in `to`. Meanwhile the previous block's result is written, so that the tile unit does not wait.
template <bool kBias, WriteMode kMode, class Epilogue, class T>
WEFT_INLINE void MultiplyBlock(const BFloat16* a, const BFloat16* b, int64_t depth,
                               const float* from, float* to, Ahead<T> ahead, Result<T>& previous) {
  const int64_t steps = depth / kBlock;
  const int64_t near = steps < kNearDepth / kBlock ? steps : kNearDepth / kBlock;
  const int64_t rows_per_step = (kBlock + steps - 1) / steps;
  const int64_t sum_lines = (kBlockSize / kLanes + steps - 1) / steps;
  // In 65536ths: epilogues that compute much should do so all the time.
  const int64_t written_per_step = (kBlock << 16) / steps + 1;
  LoadSums(from);
  for (int64_t i = 0; i < steps; ++i, a += kStep, b += kStep) {
    if (i < near) {
      MultiplyStep<true>(a, b);
    } else {
      MultiplyStep<false>(a, b);
    }
    for (int64_t line = 0; line < ahead.lines; ++line, ahead.b += kBlock) {
      _mm_prefetch(ahead.b, _MM_HINT_T1);
    }
    if (from != nullptr) {
      for (int64_t line = 0; line < sum_lines; ++line, ahead.sums += kLanes) {
        _mm_prefetch(ahead.sums, _MM_HINT_T0);
      }
    }
    if ((kMode == WriteMode::kAccumulate || Epilogue::kReadsBefore) && ahead.c != nullptr) {
      for (int64_t row = 0; row < rows_per_step; ++row, ahead.c += ahead.c_stride) {
        _mm_prefetch(ahead.c, _MM_HINT_T1);
        _mm_prefetch(ahead.c + kBlock - 1, _MM_HINT_T1);
      }
    }
    WriteRows<kBias, kMode, Epilogue>(previous, ((i + 1) * written_per_step >> 16) - previous.row);
  }
  StoreSums(to);
}

// Copies 32 rows of 32 * steps elements into tiles; rows from `rows` on become zero.
WEFT_INLINE void TileRows(const BFloat16* from, int64_t stride, int64_t rows, int64_t steps,
                          BFloat16* to) {
  constexpr int64_t kTogether = 4;
  for (int64_t first = 0; first < steps; first += kTogether) {
    const int64_t count = steps - first < kTogether ? steps - first : kTogether;
    for (int64_t r = 0; r < kBlock; ++r) {
      BFloat16* tile = to + first * kStep + r * kBlock;
      const BFloat16* row = from + r * stride + first * kBlock;
      for (int64_t i = 0; i < count; ++i) {
        _mm512_storeu_si512(tile + i * kStep, r < rows ? LoadBits(row + i * kBlock) : __m512i{});
        // Prefetches what is copied next: there are far more rows than the processor sees as
        // streams.
        _mm_prefetch(row + (kTogether + i) * kBlock, _MM_HINT_T0);
      }
    }
  }
}

// Turns `blocks` times 32 columns of 32 rows (`valid` rows are there) into tiles of their
// transpose, each block's `step` elements behind the last. Adds the sums of the columns to `sums`,
// unless it is null.
WEFT_INLINE void TileColumns(const BFloat16* from, int64_t stride, int64_t valid, int64_t blocks,
                             int64_t step, float* sums, BFloat16* to) {
  const auto kOnes = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
  for (int64_t block = 0; block < blocks; ++block, from += kBlock, to += step) {
    __m512i low[16], high[16];
    for (int64_t r = 0; r < 16; ++r) LoadPairs(from, stride, 2 * r, valid, &low[r], &high[r]);
    if (sums != nullptr) {
      __m512 low_sum = Load(sums), high_sum = Load(sums + kLanes);
      for (int r = 0; r < 16; ++r) {
        low_sum = _mm512_dpbf16_ps(low_sum, reinterpret_cast<__m512bh>(low[r]), kOnes);
        high_sum = _mm512_dpbf16_ps(high_sum, reinterpret_cast<__m512bh>(high[r]), kOnes);
      }
      Store(sums, low_sum);
      Store(sums + kLanes, high_sum);
      sums += kBlock;
    }
    Transpose16(low);
    Transpose16(high);
    for (int64_t r = 0; r < 16; ++r) {
      _mm512_storeu_si512(to + r * kBlock, low[r]);
      _mm512_storeu_si512(to + kTile + r * kBlock, high[r]);
    }
  }
}

// Rows [begin, end) of a over [k_begin, k_begin + depth) as tiles, block after block.
WEFT_INLINE void TileLeft(const Product& p, int64_t begin, int64_t end, int64_t k_begin,
                          int64_t depth, bool sum, BFloat16* to) {
  if (p.a_columns) {
    float* sums = sum && p.a_sums != nullptr ? p.a_sums + begin : nullptr;
    for (int64_t k = k_begin; k < k_begin + depth; k += kBlock, to += kStep) {
      TileColumns(p.a + k * p.a_stride + begin, p.a_stride, p.k_valid - k, (end - begin) / kBlock,
                  kBlock * depth, sums, to);
    }
    return;
  }
  for (int64_t row = begin; row < end; row += kBlock, to += kBlock * depth) {
    TileRows(p.a + row * p.a_stride + k_begin, p.a_stride, end - row, depth / kBlock, to);
  }
}

// How a product is cut. `rows` of a over `depth` of k stay in the second-level cache while
// `panels` of b pass by; sums over `near` of k at a time run in the tiles, so that this much of a
// panel stays in the first-level cache while blocks of rows pass by it.
struct Cut {
  int64_t rows, depth, near, panels;
};

WEFT_INLINE Cut CutOf(int64_t k, int64_t rows, int64_t panels) {
  const int64_t depth = EvenPart(k, panels > kWaitingPanels ? kLongestDepth : kResidentDepth);
  const int64_t most = kResidentBytes / (2 * depth) / kBlock * kBlock;
  return {EvenPart(rows, most), depth, depth <= kWholeDepth ? depth : EvenPart(depth, kCutDepth),
          depth == k || panels < kWaitingPanels ? panels : kWaitingPanels};
}

// Blocks of c on their way to memory: one is written while the next is multiplied.
template <class T>
struct Finished {
  alignas(64) float blocks[2][kBlockSize];
  int parity = 0;
  Result<T> last;
};

// A part of a product whose rows of a are in tiles.
struct Part {
  int64_t row_begin, row_end;
  int64_t k_begin, depth;
  int64_t first, last;  // panels
  bool whole;           // all of k
};

// Where results go: matrices of one size and stride.
template <class T>
struct Target {
  T* c;
  const T* before = nullptr;
  T* active = nullptr;
};

// Rows of a times `depth` of a panel from row k of the part on. What comes after it is fetched.
template <bool kBias, WriteMode kMode, class Epilogue, class T>
WEFT_INLINE void MultiplyPanel(const Product& p, const Part& part, const Target<T>& target,
                               int64_t panel, int64_t k, int64_t depth, Scratch scratch,
                               Finished<T>& finished) {
  // What a panel's next is fetched ahead by while blocks of rows pass by this one.
  constexpr int64_t kFewestBlocks = 4;
  const int64_t row_blocks = (part.row_end - part.row_begin + kBlock - 1) / kBlock;
  const bool opens = part.k_begin + k == 0, closes = part.k_begin + k + depth == p.k;
  const BFloat16* b = p.b + (panel * p.k + part.k_begin + k) * kBlock;
  const BFloat16* next_b = b + kBlock * depth;
  if (k + depth == part.depth && panel + 1 < part.last) {
    next_b = p.b + ((panel + 1) * p.k + part.k_begin) * kBlock;
  }
  Ahead<T> ahead = {.b = next_b,
                    .lines = row_blocks < kFewestBlocks ? 0 : (kBlock - 1) / row_blocks + 1,
                    .c_stride = p.c_stride};
  const T* read = Epilogue::kReadsBefore ? target.before : target.c;
  float* sums = scratch.sums + (part.whole ? 0 : (panel - part.first) * row_blocks * kBlockSize);
  for (int64_t block = 0; block < row_blocks; ++block) {
    const int64_t row = part.row_begin + block * kBlock;
    const int64_t offset = row * p.c_stride + panel * kBlock;
    float* at = sums + block * kBlockSize;
    if (ahead.b >= next_b + depth * kBlock) ahead.lines = 0;
    ahead.c = closes ? read + offset : nullptr;
    ahead.sums = block + 1 < row_blocks ? at + kBlockSize : sums;
    MultiplyBlock<kBias, kMode, Epilogue>(
        scratch.a + (block * part.depth + k) * kBlock, b, depth, opens ? nullptr : at,
        closes ? finished.blocks[finished.parity] : at, ahead, finished.last);
    ahead.b += ahead.lines * depth;
    WriteRows<kBias, kMode, Epilogue>(finished.last, kBlock);
    finished.last = {};
    if (!closes) continue;
    finished.last = {.block = finished.blocks[finished.parity],
                     .rows = part.row_end - row < kBlock ? part.row_end - row : kBlock,
                     .bias = kBias ? p.bias + panel * kBlock : nullptr,
                     .c = target.c + offset,
                     .c_stride = p.c_stride,
                     .before = Epilogue::kReadsBefore ? target.before + offset : nullptr,
                     .active = target.active == nullptr ? nullptr : target.active + offset};
    finished.parity ^= 1;
  }
}

template <bool kBias, WriteMode kMode, class Epilogue = StoreOnly, class T>
void MultiplyRange(const Product& p, const Target<T>& target, int64_t row_begin, int64_t row_end,
                   int64_t begin, int64_t end, Scratch scratch) {
  alignas(64) TileConfig config = {};
  _tile_loadconfig(&config);
  Finished<T> finished;
  const Cut cut = CutOf(p.k, row_end - row_begin, end - begin);
  for (int64_t first = begin; first < end; first += cut.panels) {
    const int64_t last = first + cut.panels < end ? first + cut.panels : end;
    for (int64_t row = row_begin; row < row_end; row += cut.rows) {
      for (int64_t k_begin = 0; k_begin < p.k; k_begin += cut.depth) {
        const Part part = {
            .row_begin = row,
            .row_end = row + cut.rows < row_end ? row + cut.rows : row_end,
            .k_begin = k_begin,
            .depth = k_begin + cut.depth < p.k ? cut.depth : p.k - k_begin,
            .first = first,
            .last = last,
            .whole = cut.depth == p.k,
        };
        TileLeft(p, part.row_begin, part.row_end, k_begin, part.depth, first == 0, scratch.a);
        for (int64_t panel = first; panel < last; ++panel) {
          for (int64_t k = 0; k < part.depth; k += cut.near) {
            const int64_t depth = k + cut.near < part.depth ? cut.near : part.depth - k;
            MultiplyPanel<kBias, kMode, Epilogue>(p, part, target, panel, k, depth, scratch,
                                                  finished);
          }
        }
      }
    }
  }
  WriteRows<kBias, kMode, Epilogue>(finished.last, kBlock);
  _tile_release();
  if (kMode == WriteMode::kStream) _mm_sfence();
}

}  // namespace

ScratchSize ScratchOf(int64_t k, int64_t rows, int64_t panels) {
  const Cut cut = CutOf(k, rows, panels);
  if (cut.near == k) return {cut.rows * cut.depth, 0};
  return {cut.rows * cut.depth, cut.rows * kBlock * (cut.depth < k ? cut.panels : 1)};
}

void PackRows(const BFloat16* from, int64_t stride, int64_t k, int64_t n, int64_t begin,
              int64_t end, BFloat16* packed) {
  int64_t padded = (k + kBlock - 1) / kBlock * kBlock;
  for (int64_t i = begin * kBlock; i < end * kBlock; i += kBlock) {
    for (int64_t column = 0; column < n; column += kBlock) {
      BFloat16* to = packed + column * padded + i * kBlock;
      for (int64_t r = 0; r < 16; ++r, to += kBlock) {
        __m512i low, high;
        LoadPairs(from + column, stride, i + 2 * r, k, &low, &high);
        StoreLine<true>(to, low);
        StoreLine<true>(to + kTile, high);
      }
    }
  }
  _mm_sfence();
}

void PackTransposed(const BFloat16* b, int64_t k, int64_t n, int64_t begin, int64_t end,
                    BFloat16* packed) {
  const int64_t blocks = k / kBlock, panels = n / kBlock;
  BFloat16* to = packed + begin * kBlock * n;
  for (int64_t block = begin; block < end; ++block) {
    for (int64_t panel = 0; panel < panels; ++panel, to += kStep) {
      const BFloat16* from = b + (panel * blocks + block) * kStep;
      const BFloat16* next = from + blocks * kStep;
      for (int64_t half = 0; half < 2; ++half, from += kTile, next += kTile) {
        // 16 columns of b, each with its 32 rows.
        __m512i columns[16];
        for (int64_t r = 0; r < 16; ++r) {
          columns[r] = LoadBits(from + r * kBlock);
          _mm_prefetch(next + r * kBlock, _MM_HINT_T1);
        }
        Transpose16(columns);
        for (int64_t r = 0; r < 8; ++r) {
          __m512i low, high;
          Interleave(columns[2 * r], columns[2 * r + 1], &low, &high);
          _mm512_storeu_si512(to + (8 * half + r) * kBlock, low);
          _mm512_storeu_si512(to + (8 * half + r) * kBlock + kTile, high);
        }
      }
    }
  }
}

template <class T>
WEFT_INLINE void PackColumnsOf(const T* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                               BFloat16* packed) {
  for (int64_t panel = begin; panel < end; ++panel) {
    auto* to = reinterpret_cast<char*>(packed + panel * kBlock * k);
    const T* source = from + panel * kBlock * stride;
    for (int64_t i = 0; i < k; i += kBlock) {
      for (int64_t half = 0; half < 2; ++half, to += 1024) {
        __m512i rows[16];
        for (int64_t r = 0; r < 16; ++r) rows[r] = Load32(source + (half * 16 + r) * stride + i);
        Transpose16(rows);
        for (int64_t r = 0; r < 16; ++r) StoreLine<true>(to + r * 64, rows[r]);
      }
    }
  }
  _mm_sfence();
}

void PackColumns(const float* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                 BFloat16* packed) {
  PackColumnsOf(from, stride, k, begin, end, packed);
}
void PackColumns(const BFloat16* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                 BFloat16* packed) {
  PackColumnsOf(from, stride, k, begin, end, packed);
}
template <class Epilogue>
void MultiplyWith(const Product& p, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end,
                  Scratch scratch) {
  const Target<BFloat16> target = {.c = p.c_bf16, .before = p.before, .active = p.active};
  const bool stream = Streams(p.c_bf16, p.c_stride, row_end - row_begin, (end - begin) * kBlock,
                              sizeof *p.c_bf16) &&
                      reinterpret_cast<uintptr_t>(p.active) % 64 == 0;
  auto run = [&]<bool kBias, WriteMode kMode>() {
    MultiplyRange<kBias, kMode, Epilogue>(p, target, row_begin, row_end, begin, end, scratch);
  };
  if constexpr (!Epilogue::kReadsBefore) {
    if (p.bias != nullptr) {
      return stream ? run.template operator()<true, WriteMode::kStream>()
                    : run.template operator()<true, WriteMode::kStore>();
    }
  }
  return stream ? run.template operator()<false, WriteMode::kStream>()
                : run.template operator()<false, WriteMode::kStore>();
}

void Multiply(const Product& p, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end,
              Scratch scratch) {
  switch (p.gelu) {
    case ProductGelu::kTanh:
      return MultiplyWith<StoreAndGelu<TanhGelu>>(p, row_begin, row_end, begin, end, scratch);
    case ProductGelu::kErf:
      return MultiplyWith<StoreAndGelu<ErfGelu>>(p, row_begin, row_end, begin, end, scratch);
    case ProductGelu::kTanhGradient:
      return MultiplyWith<StoreGeluGradient<TanhGelu>>(p, row_begin, row_end, begin, end, scratch);
    case ProductGelu::kErfGradient:
      return MultiplyWith<StoreGeluGradient<ErfGelu>>(p, row_begin, row_end, begin, end, scratch);
    case ProductGelu::kNone:
      break;
  }
  auto run = [&]<class T>(T* c) {
    const Target<T> target = {.c = c};
    const bool stream = !p.accumulate && Streams(c, p.c_stride, row_end - row_begin,
                                                 (end - begin) * kBlock, sizeof *c);
    if (p.accumulate) {
      MultiplyRange<false, WriteMode::kAccumulate>(p, target, row_begin, row_end, begin, end,
                                                   scratch);
    } else if (p.bias != nullptr && stream) {
      MultiplyRange<true, WriteMode::kStream>(p, target, row_begin, row_end, begin, end, scratch);
    } else if (p.bias != nullptr) {
      MultiplyRange<true, WriteMode::kStore>(p, target, row_begin, row_end, begin, end, scratch);
    } else if (stream) {
      MultiplyRange<false, WriteMode::kStream>(p, target, row_begin, row_end, begin, end, scratch);
    } else {
      MultiplyRange<false, WriteMode::kStore>(p, target, row_begin, row_end, begin, end, scratch);
    }
  };
  if (p.c_f32 != nullptr) {
    run(p.c_f32);
  } else {
    run(p.c_bf16);
  }
}

}  // namespace weft::kernels::cpu::avx512_bf16
