// What a warp's lanes do together. Compiled without ThreadSanitizer, as executor.cc.

#include <bit>

#include "common/dtype.h"
#include "tests/gpu/host/executor.h"

namespace weft::host_cuda {
namespace {

bool TakesPart(const WarpWords& words, uint32_t lane) {
  return (words.lanes >> lane & 1u) != 0;
}

template <class T>
float Half16(uint32_t word, uint32_t upper) {
  return ToFloat(T{static_cast<uint16_t>(upper != 0 ? word >> 16 : word)});
}

// D = A B + C for A [16, 16], B [16, 8], both held as pairs of T. With group = lane / 4 and
// t = lane % 4, register i of A holds row group + 8 (i % 2) at columns 2 t + 8 (i / 2) and the
// next; register i of B rows 2 t + 8 i and the next of column group; element i of C and D row group
// + 8 (i / 2) of column 2 t + i % 2.
template <class T>
void Multiply(WarpWords& words) {
  double a[16][16], b[16][8], c[16][8];
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const uint32_t group = lane / 4, t = lane % 4;
    for (uint32_t half = 0; half < 2; ++half) {
      for (uint32_t i = 0; i < 4; ++i) {
        a[group + 8 * (i % 2)][2 * t + 8 * (i / 2) + half] = Half16<T>(words.in[lane][i], half);
      }
      for (uint32_t i = 0; i < 2; ++i) {
        b[2 * t + 8 * i + half][group] = Half16<T>(words.in[lane][4 + i], half);
      }
    }
  }
  const auto row_of = [](uint32_t lane, uint32_t i) { return lane / 4 + 8 * (i / 2); };
  const auto column_of = [](uint32_t lane, uint32_t i) { return 2 * (lane % 4) + i % 2; };
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      c[row_of(lane, i)][column_of(lane, i)] = std::bit_cast<float>(words.in[lane][6 + i]);
    }
  }
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t k = 0; k < 16; ++k) {
      for (uint32_t column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      words.out[lane][i] =
          std::bit_cast<uint32_t>(static_cast<float>(c[row_of(lane, i)][column_of(lane, i)]));
    }
  }
}

uint32_t ElementOf(const WarpWords& words, uint32_t matrix, uint32_t row, uint32_t column) {
  const uint32_t word = words.in[8 * matrix + row][column / 2];
  return (column % 2 != 0 ? word >> 16 : word) & 0xffffu;
}

template <bool kTransposed>
void Spread(WarpWords& words) {
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      const uint32_t row = lane / 4, column = 2 * (lane % 4);
      const uint32_t low = kTransposed ? ElementOf(words, matrix, column, row)
                                       : ElementOf(words, matrix, row, column);
      const uint32_t high = kTransposed ? ElementOf(words, matrix, column + 1, row)
                                        : ElementOf(words, matrix, row, column + 1);
      words.out[lane][matrix] = low | high << 16;
    }
  }
}

}  // namespace

void TakeFromLane(WarpWords& words) {
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (!TakesPart(words, lane)) continue;
    const uint32_t from = words.in[lane][2];
    // From a lane that does not take part, hardware gives anything.
    for (int i = 0; i < 2; ++i) {
      words.out[lane][i] = TakesPart(words, from) ? words.in[from][i] : 0xffffffffu;
    }
  }
}

void Ballot(WarpWords& words) {
  uint32_t mask = 0;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (TakesPart(words, lane) && words.in[lane][0] != 0) mask |= 1u << lane;
  }
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) words.out[lane][0] = mask;
}

void MultiplyBFloat16(WarpWords& words) {
  Multiply<BFloat16>(words);
}
void MultiplyHalf(WarpWords& words) {
  Multiply<Half>(words);
}
void SpreadMatrices(WarpWords& words) {
  Spread<false>(words);
}
void SpreadTransposed(WarpWords& words) {
  Spread<true>(words);
}

}  // namespace weft::host_cuda
