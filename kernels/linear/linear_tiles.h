#pragma once

#include "kernels/cpu/vec.h"

/// What the products on AMX tiles share. For <op>_simd.cc files compiled for AVX512_BF16.
namespace weft::kernels::cpu::avx512_bf16 {
namespace {

// Elements of one tile of 16 rows of 64 bytes, and of a panel's part for 32 rows of b.
constexpr int64_t kTile = 512;
constexpr int64_t kStep = 2 * kTile;

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

enum class WriteMode : uint8_t { kStore, kStream, kAccumulate };

// A finished block of c, still in f32, on its way to memory.
template <class T>
struct Result {
  const float* block = nullptr;  // its four tiles, one behind the other
  int64_t row = 0;               // next to write
  int64_t rows = 0;
  const float* bias = nullptr;
  T* c = nullptr;
  int64_t c_stride = 0;
  const T* before = nullptr;  // of an epilogue with GELU: where c is in matrices of its size
  T* active = nullptr;
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

template <bool kStream>
WEFT_INLINE void StoreRow(Half* c, VecF low, VecF high) {
  auto low_half = reinterpret_cast<__m256i>(ToHalfBits(low));
  auto high_half = reinterpret_cast<__m256i>(ToHalfBits(high));
  StoreLine<kStream>(c, _mm512_inserti64x4(_mm512_castsi256_si512(low_half), high_half, 1));
}

// Epilogues, what becomes of a row's values at last: they are stored.
struct StoreOnly {
  static constexpr bool kReadsBefore = false;

  template <bool kStream, class T>
  WEFT_INLINE static void Apply(const Result<T>& /*result*/, int64_t /*at*/, T* c, VecF low,
                                VecF high) {
    StoreRow<kStream>(c, low, high);
  }
};

template <bool kBias, WriteMode kMode, class Epilogue = StoreOnly, class T>
WEFT_INLINE void WriteRows(Result<T>& result, int64_t count) {
  int64_t end = result.row + count < result.rows ? result.row + count : result.rows;
  for (; result.row < end; ++result.row) {
    const float* block = result.block + result.row / 16 * kTile + result.row % 16 * kLanes;
    const int64_t at = result.row * result.c_stride;
    T* c = result.c + at;
    VecF low = Load(block), high = Load(block + kTile / 2);
    if (kBias) {
      low += Load(result.bias);
      high += Load(result.bias + kLanes);
    }
    if (kMode == WriteMode::kAccumulate) {
      low += Load(c);
      high += Load(c + kLanes);
    }
    Epilogue::template Apply<kMode == WriteMode::kStream>(result, at, c, low, high);
  }
}

// Loads the four tiles of a block's sums, or zero when `from` is null; and stores them.
WEFT_INLINE void LoadSums(const float* from) {
  if (from != nullptr) {
    _tile_loadd(0, from, 64);
    _tile_loadd(1, from + kTile / 2, 64);
    _tile_loadd(2, from + kTile, 64);
    _tile_loadd(3, from + kTile * 3 / 2, 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}
WEFT_INLINE void StoreSums(float* to) {
  _tile_stored(0, to, 64);
  _tile_stored(1, to + kTile / 2, 64);
  _tile_stored(2, to + kTile, 64);
  _tile_stored(3, to + kTile * 3 / 2, 64);
}

// Whether rows of c may be written past the cache, and whether it is worth it.
WEFT_INLINE bool Streams(const void* c, int64_t c_stride, int64_t rows, int64_t columns,
                         int64_t size) {
  return reinterpret_cast<uintptr_t>(c) % 64 == 0 && c_stride * size % 64 == 0 &&
         rows * columns * size >= kStreamedBytes;
}

}  // namespace
}  // namespace weft::kernels::cpu::avx512_bf16
