#include "kernels/linear/linear_bf16_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::avx512_bf16 {
namespace {

// Elements of one tile of 16 rows of 64 bytes, and of a panel's part for 32 rows of b.
constexpr int64_t kTile = 512;
constexpr int64_t kStep = 2 * kTile;

// Bytes that surely stay in the second-level cache beside what passes through it.
constexpr int64_t kCachedBytes = 1280 << 10;

// Results of a thread from this size on are written past the cache: most would leave it before they
// are read, and the lines they replace need not be fetched.
constexpr int64_t kStreamedBytes = 320 << 10;

struct __attribute__((packed)) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

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

// Transposes 16 x 16 words of 32 bits.
WEFT_INLINE void Transpose16(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
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
WEFT_INLINE void LoadPairs(const BFloat16* from, int64_t stride, int64_t row, int64_t rows,
                           __m512i* low, __m512i* high) {
  const BFloat16* at = from + row * stride;
  __m512i even = row < rows ? LoadBits(at) : __m512i{};
  __m512i odd = row + 1 < rows ? LoadBits(at + stride) : __m512i{};
  _mm_prefetch(at + kBlock * stride, _MM_HINT_T1);
  _mm_prefetch(at + (kBlock + 1) * stride, _MM_HINT_T1);
  Interleave(even, odd, low, high);
}

enum class WriteMode : uint8_t { kStore, kStream, kAccumulate };

// A finished block of c, still in f32, on its way to memory.
template <class T>
struct Result {
  float* block = nullptr;  // 32 rows of 32
  int64_t row = 0;         // next to write
  int64_t rows = 0;
  const float* bias = nullptr;
  T* c = nullptr;
  int64_t c_stride = 0;
};

// Writes around the cache where `kStream`: a whole line, whose old contents are then not fetched.
template <bool kStream>
WEFT_INLINE void StoreLine(void* to, __m512i line) {
  if (kStream) {
    _mm512_stream_si512(static_cast<__m512i*>(to), line);
  } else {
    _mm512_storeu_si512(to, line);
  }
}

template <bool kStream>
WEFT_INLINE void StoreRow(float* c, VecF low, VecF high) {
  StoreLine<kStream>(c, reinterpret_cast<__m512i>(low));
  StoreLine<kStream>(c + kLanes, reinterpret_cast<__m512i>(high));
}

template <bool kStream>
WEFT_INLINE void StoreRow(BFloat16* c, VecF low, VecF high) {
  StoreLine<kStream>(c, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

template <bool kBias, WriteMode kMode, class T>
WEFT_INLINE void WriteRows(Result<T>& result, int64_t count) {
  int64_t end = result.row + count < result.rows ? result.row + count : result.rows;
  for (; result.row < end; ++result.row) {
    const float* block = result.block + result.row * kBlock;
    T* c = result.c + result.row * result.c_stride;
    VecF low = Load(block), high = Load(block + kLanes);
    if (kBias) {
      low += Load(result.bias);
      high += Load(result.bias + kLanes);
    }
    if (kMode == WriteMode::kAccumulate) {
      low += Load(c);
      high += Load(c + kLanes);
    }
    StoreRow<kMode == WriteMode::kStream>(c, low, high);
  }
}

WEFT_INLINE void Prefetch16(const BFloat16* rows, int64_t stride) {
  for (int64_t r = 0; r < 16; ++r) _mm_prefetch(rows + r * stride, _MM_HINT_T0);
}

// One block of 32 x 32: two rows of tiles of a times two tiles of b for each 32 of k. Meanwhile the
// previous block's result is written, and a is fetched some steps ahead (then from `next_a`): the
// tile unit waits for neither.
template <bool kBias, WriteMode kMode, class T>
WEFT_INLINE void MultiplyBlock(const BFloat16* a, int64_t a_stride, const BFloat16* next_a,
                               const BFloat16* b, int64_t k, float* block, Result<T>& previous) {
  constexpr int64_t kAhead = 4 * kBlock;
  int64_t steps = k / kBlock;
  int64_t rows_per_step = (kBlock + steps - 1) / steps;
  const BFloat16* lower = a + 16 * a_stride;
  int64_t stride = a_stride * 2;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < k; i += kBlock) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a + i, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTile, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower + i, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    b += kStep;
    const BFloat16* ahead = i + kAhead < k ? a + i + kAhead : next_a + (i + kAhead - k);
    Prefetch16(ahead, a_stride);
    Prefetch16(ahead + 16 * a_stride, a_stride);
    WriteRows<kBias, kMode>(previous, rows_per_step);
  }
  _tile_stored(0, block, kBlock * 4);
  _tile_stored(1, block + 16, kBlock * 4);
  _tile_stored(2, block + 16 * kBlock, kBlock * 4);
  _tile_stored(3, block + 16 * kBlock + 16, kBlock * 4);
}

template <bool kBias, WriteMode kMode, class T>
void MultiplyRange(const Product& p, T* c, int64_t row_begin, int64_t row_end, int64_t begin,
                   int64_t end, BFloat16* row_scratch) {
  alignas(64) TileConfig config = {};
  _tile_loadconfig(&config);
  alignas(64) float blocks[2][kBlock * kBlock];
  Result<T> previous;
  int parity = 0;
  int64_t resident = ResidentRows(p.k);
  for (int64_t group = row_begin; group < row_end; group += resident) {
    int64_t group_end = group + resident < row_end ? group + resident : row_end;
    for (int64_t panel = begin; panel < end; ++panel) {
      const BFloat16* b = p.b + panel * kBlock * p.k;
      for (int64_t row = group; row < group_end; row += kBlock, parity ^= 1) {
        int64_t rows = group_end - row < kBlock ? group_end - row : kBlock;
        const BFloat16* a = p.a + row * p.a_stride;
        int64_t a_stride = p.a_stride;
        if (rows < kBlock) {
          // The last rows, completed with zeros.
          __builtin_memset(static_cast<void*>(row_scratch), 0, kBlock * p.k * 2);
          for (int64_t r = 0; r < rows; ++r) {
            __builtin_memcpy(static_cast<void*>(row_scratch + r * p.k), a + r * p.a_stride,
                             p.k * 2);
          }
          a = row_scratch;
          a_stride = p.k;
        }
        const BFloat16* next_a =
            row + kBlock < group_end ? a + kBlock * a_stride : p.a + group * p.a_stride;
        MultiplyBlock<kBias, kMode>(a, a_stride, next_a, b, p.k, blocks[parity], previous);
        WriteRows<kBias, kMode>(previous, kBlock);
        previous = {.block = blocks[parity],
                    .rows = rows,
                    .bias = kBias ? p.bias + panel * kBlock : nullptr,
                    .c = c + row * p.c_stride + panel * kBlock,
                    .c_stride = p.c_stride};
      }
    }
  }
  WriteRows<kBias, kMode>(previous, kBlock);
  _tile_release();
  if (kMode == WriteMode::kStream) _mm_sfence();
}

}  // namespace

int64_t ResidentRows(int64_t k) {
  int64_t rows = kCachedBytes / (2 * k) / kBlock * kBlock;
  return rows < 2 * kBlock ? 2 * kBlock : rows;
}

template <class T>
WEFT_INLINE void PackRowsOf(const T* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                            BFloat16* packed) {
  for (int64_t panel = begin; panel < end; ++panel) {
    auto* to = reinterpret_cast<char*>(packed + panel * kBlock * k);
    const T* source = from + panel * kBlock;
    for (int64_t i = 0; i < k; i += kBlock, to += 2 * kStep) {
      for (int64_t r = 0; r < 16; ++r) {
        const T* even = source + (i + 2 * r) * stride;
        __m512i low, high;
        Interleave(Load32(even), Load32(even + stride), &low, &high);
        _mm512_storeu_si512(to + r * 64, low);
        _mm512_storeu_si512(to + 1024 + r * 64, high);
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
        for (int64_t r = 0; r < 16; ++r) _mm512_storeu_si512(to + r * 64, rows[r]);
      }
    }
  }
}

void PackRows(const float* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
              BFloat16* packed) {
  PackRowsOf(from, stride, k, begin, end, packed);
}
void PackRows(const BFloat16* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
              BFloat16* packed) {
  PackRowsOf(from, stride, k, begin, end, packed);
}
void PackColumns(const float* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                 BFloat16* packed) {
  PackColumnsOf(from, stride, k, begin, end, packed);
}
void PackColumns(const BFloat16* from, int64_t stride, int64_t k, int64_t begin, int64_t end,
                 BFloat16* packed) {
  PackColumnsOf(from, stride, k, begin, end, packed);
}

void PackBf16Rows(const BFloat16* from, int64_t stride, int64_t k, int64_t n, int64_t begin,
                  int64_t end, BFloat16* packed) {
  int64_t padded = (k + kBlock - 1) / kBlock * kBlock;
  for (int64_t i = begin * kBlock; i < end * kBlock; i += kBlock) {
    for (int64_t column = 0; column < n; column += kBlock) {
      auto* to = reinterpret_cast<char*>(packed + column * padded + i * kBlock);
      for (int64_t r = 0; r < 16; ++r) {
        __m512i low, high;
        LoadPairs(from + column, stride, i + 2 * r, k, &low, &high);
        _mm512_storeu_si512(to + r * 64, low);
        _mm512_storeu_si512(to + 1024 + r * 64, high);
      }
    }
  }
}

void TransposeBf16(const BFloat16* from, int64_t stride, int64_t rows, int64_t columns,
                   BFloat16* to, int64_t to_stride, float* sums) {
  const auto kOnes = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
  for (int64_t i = 0; i < rows; i += kBlock) {
    for (int64_t column = 0; column < columns; column += kBlock) {
      __m512i low[16], high[16];
      for (int64_t r = 0; r < 16; ++r) {
        LoadPairs(from + column, stride, i + 2 * r, rows, &low[r], &high[r]);
      }
      if (sums != nullptr) {
        __m512 low_sum = {}, high_sum = {};
        for (int r = 0; r < 16; ++r) {
          low_sum = _mm512_dpbf16_ps(low_sum, reinterpret_cast<__m512bh>(low[r]), kOnes);
          high_sum = _mm512_dpbf16_ps(high_sum, reinterpret_cast<__m512bh>(high[r]), kOnes);
        }
        Store(sums + column, Load(sums + column) + low_sum);
        Store(sums + column + kLanes, Load(sums + column + kLanes) + high_sum);
      }
      Transpose16(low);
      Transpose16(high);
      for (int64_t r = 0; r < 16; ++r) {
        _mm512_storeu_si512(to + (column + r) * to_stride + i, low[r]);
        _mm512_storeu_si512(to + (column + 16 + r) * to_stride + i, high[r]);
      }
    }
  }
}

void Multiply(const Product& p, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end,
              BFloat16* row_scratch) {
  auto whole_lines = [&](const void* c, int64_t size) {
    return reinterpret_cast<uintptr_t>(c) % 64 == 0 && p.c_stride * size % 64 == 0 &&
           (row_end - row_begin) * (end - begin) * kBlock * size >= kStreamedBytes;
  };
  auto run = [&](auto* c) {
    bool stream = !p.accumulate && whole_lines(c, sizeof *c);
    if (p.accumulate) {
      MultiplyRange<false, WriteMode::kAccumulate>(p, c, row_begin, row_end, begin, end,
                                                   row_scratch);
    } else if (p.bias != nullptr && stream) {
      MultiplyRange<true, WriteMode::kStream>(p, c, row_begin, row_end, begin, end, row_scratch);
    } else if (p.bias != nullptr) {
      MultiplyRange<true, WriteMode::kStore>(p, c, row_begin, row_end, begin, end, row_scratch);
    } else if (stream) {
      MultiplyRange<false, WriteMode::kStream>(p, c, row_begin, row_end, begin, end, row_scratch);
    } else {
      MultiplyRange<false, WriteMode::kStore>(p, c, row_begin, row_end, begin, end, row_scratch);
    }
  };
  if (p.c_f32 != nullptr) {
    run(p.c_f32);
  } else {
    run(p.c_bf16);
  }
}

}  // namespace weft::kernels::cpu::avx512_bf16
