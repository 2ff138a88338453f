#include "kernels/linear/linear_f32_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// A block of c that is summed in registers; there are 16.
constexpr int kRows = 6;
constexpr int kColumns = 2 * kLanes;

// Lines of an operand packed at a time where they are side by side: whole cache lines of each.
constexpr int64_t kSlivers = 8;

// How many lines ahead of their packing they are fetched.
constexpr int64_t kAhead = 8;

// `count` numbers as f32: where they are, or widened into `to`, [count] and a vector's end.
WEFT_INLINE const float* AsF32(const float* from, int64_t /*count*/, float* /*to*/) {
  return from;
}
template <class T>
WEFT_INLINE const float* AsF32(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) Store(to + i, LoadUpTo(from + i, count - i));
  return to;
}

// This many lines of a sliver.
template <int kWidth, class T>
WEFT_INLINE void PackLines(const T* from, int64_t stride, int64_t lines, int64_t depth, float* to) {
  float room[kWidth][kMostF32Depth];
  const float* line[kWidth];
  for (int64_t i = 0; i < lines; ++i) line[i] = AsF32(from + i * stride, depth, room[i]);
  if (lines == kWidth) {
    for (int64_t k = 0; k < depth; ++k, to += kWidth) {
      for (int i = 0; i < kWidth; ++i) to[i] = line[i][k];
    }
    return;
  }
  for (int64_t k = 0; k < depth; ++k, to += kWidth) {
    for (int64_t i = 0; i < kWidth; ++i) to[i] = i < lines ? line[i][k] : 0.0f;
  }
}

template <int kWidth, class T>
void PackAlong(const T* from, int64_t stride, int64_t lines, int64_t depth, float* to) {
  for (int64_t line = 0; line < lines; line += kWidth) {
    const int64_t here = lines - line < kWidth ? lines - line : kWidth;
    PackLines<kWidth>(from + line * stride, stride, here, depth, to + line * depth);
  }
}

template <int kWidth, class T>
void PackAcross(const T* from, int64_t stride, int64_t lines, int64_t depth, float* to,
                float* sums) {
  constexpr int64_t kStrip = kSlivers * kWidth;
  float room[kStrip + kLanes];
  for (int64_t line = 0; line < lines; line += kStrip) {
    const int64_t here = lines - line < kStrip ? lines - line : kStrip;
    for (int64_t k = 0; k < depth; ++k) {
      const T* source = from + k * stride + line;
      for (int64_t i = 0; i < here; i += kWidth) __builtin_prefetch(source + kAhead * stride + i);
      const float* row = AsF32(source, here, room);
      float* at = to + line * depth + k * kWidth;
      int64_t i = 0;
      for (; i + kWidth <= here; i += kWidth, at += depth * kWidth) {
        for (int w = 0; w < kWidth; ++w) at[w] = row[i + w];
      }
      if (i == here) continue;
      for (int64_t w = 0; w < kWidth; ++w) at[w] = i + w < here ? row[i + w] : 0.0f;
    }
  }
  if (sums == nullptr) return;
  for (int64_t line = 0; line < lines; line += kWidth) {
    const float* at = to + line * depth;
    float total[kWidth] = {};
    for (int64_t k = 0; k < depth; ++k, at += kWidth) {
      for (int i = 0; i < kWidth; ++i) total[i] += at[i];
    }
    for (int64_t i = 0; i < kWidth && line + i < lines; ++i) sums[line + i] += total[i];
  }
}

int64_t Parts(int64_t count, int64_t most) {
  return (count + most - 1) / most;
}

// Fetches what is upcoming, a few cache lines at a time.
class Fetcher {
 public:
  WEFT_INLINE Fetcher(const Upcoming& upcoming, int64_t turns) : upcoming_(upcoming) {
    const int64_t lines = upcoming.lines * ((upcoming.line_bytes + 63) / 64);
    each_ = Parts(lines, turns);
  }
  WEFT_INLINE void Turn() {
    for (int64_t i = 0; i < each_ && line_ < upcoming_.lines; ++i) {
      __builtin_prefetch(upcoming_.at + line_ * upcoming_.stride + byte_, 0, 2);
      byte_ += 64;
      if (byte_ < upcoming_.line_bytes) continue;
      byte_ = 0;
      ++line_;
    }
  }

 private:
  const Upcoming upcoming_;
  int64_t each_;
  int64_t line_ = 0, byte_ = 0;
};

// What becomes of a block's sums.
enum class Ending : uint8_t { kStore, kBias, kAccumulate };

template <Ending kEnding>
WEFT_INLINE void MultiplyBlock(const float* a, const float* b, int64_t depth, const float* bias,
                               float* c, int64_t c_stride) {
  VecF sums[kRows][2];
  for (auto& row : sums) row[0] = row[1] = VecF{};
  for (int i = 0; i < kRows; ++i) {
    __builtin_prefetch(c + i * c_stride, 1);
    __builtin_prefetch(c + i * c_stride + kColumns - 1, 1);
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < depth; ++k, a += kRows, b += kColumns) {
    const VecF low = Load(b), high = Load(b + kLanes);
    for (int i = 0; i < kRows; ++i) {
      const VecF x = Set(a[i]);
      sums[i][0] = Fma(x, low, sums[i][0]);
      sums[i][1] = Fma(x, high, sums[i][1]);
    }
  }
  // Loads before any store: rows that are a multiple of 4096 bytes apart would wait for each other.
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < 2; ++v) {
      if (kEnding == Ending::kBias) sums[i][v] += Load(bias + v * kLanes);
      if (kEnding == Ending::kAccumulate) sums[i][v] += Load(c + i * c_stride + v * kLanes);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < 2; ++v) Store(c + i * c_stride + v * kLanes, sums[i][v]);
  }
}

// A block with missing rows or columns.
void MultiplyEdge(const float* a, const float* b, int64_t depth, const float* bias, float* c,
                  int64_t c_stride, bool accumulate, int64_t rows, int64_t columns) {
  float block[kRows * kColumns];
  MultiplyBlock<Ending::kStore>(a, b, depth, nullptr, block, kColumns);
  for (int64_t r = 0; r < rows && r < kRows; ++r) {
    for (int64_t i = 0; i < columns && i < kColumns; ++i) {
      float& to = c[r * c_stride + i];
      const float before = bias != nullptr ? bias[i] : accumulate ? to : 0.0f;
      to = block[r * kColumns + i] + before;
    }
  }
}

// Blocks of all rows of a sliver of b; the next sliver is fetched meanwhile.
void MultiplySliver(const F32Product& p, int64_t column, Fetcher& fetcher) {
  const float* b = p.b + column * p.depth;
  const float* bias = p.bias == nullptr ? nullptr : p.bias + column;
  Fetcher next({.at = reinterpret_cast<const char*>(b + kColumns * p.depth),
                .lines = column + kColumns < p.columns ? 1 : 0,
                .line_bytes = kColumns * p.depth * int64_t{sizeof(float)}},
               Parts(p.rows, kRows));
  for (int64_t i = 0; i < p.rows; i += kRows) {
    fetcher.Turn();
    next.Turn();
    const float* a = p.a + i * p.depth;
    float* c = p.c + i * p.c_stride + column;
    if (i + kRows > p.rows || column + kColumns > p.columns) {
      MultiplyEdge(a, b, p.depth, bias, c, p.c_stride, p.accumulate, p.rows - i,
                   p.columns - column);
    } else if (p.accumulate) {
      MultiplyBlock<Ending::kAccumulate>(a, b, p.depth, nullptr, c, p.c_stride);
    } else if (bias != nullptr) {
      MultiplyBlock<Ending::kBias>(a, b, p.depth, bias, c, p.c_stride);
    } else {
      MultiplyBlock<Ending::kStore>(a, b, p.depth, nullptr, c, p.c_stride);
    }
  }
}

void Multiply(const F32Product& p) {
  Fetcher fetcher(p.upcoming, Parts(p.columns, kColumns) * Parts(p.rows, kRows));
  for (int64_t j = 0; j < p.columns; j += kColumns) MultiplySliver(p, j, fetcher);
}

template <int kWidth>
constexpr FloatTypes<PackLoops> kPack = {
    .f32 = {PackAcross<kWidth, float>, PackAlong<kWidth, float>},
    .bf16 = {PackAcross<kWidth, BFloat16>, PackAlong<kWidth, BFloat16>},
    .f16 = {PackAcross<kWidth, Half>, PackAlong<kWidth, Half>},
};

}  // namespace

const F32Kernels kF32Kernels = {
    .rows = kRows,
    .columns = kColumns,
    .left = kPack<kRows>,
    .right = kPack<kColumns>,
    .multiply = Multiply,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
