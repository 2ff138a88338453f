// What a warp's lanes do together. Compiled without ThreadSanitizer, as executor.cc.

#include <bit>
#include <limits>

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

// Bits [low, low + count) of a word.
uint32_t Bits(uint32_t word, uint32_t low, uint32_t count) {
  return word >> low & ((1u << count) - 1);
}

// D = A B + C for A [16, 32] with two of each four columns in a row, after the page named in
// executor.h. It numbers the elements of a lane: a0, a1 in the first register of A, a2, a3 in the
// second, and so on, likewise b0 to b7 and c0 to c3.
template <class T>
void MultiplySparse(WarpWords& words) {
  double a[16][32], b[32][8], c[16][8];
  bool kept[16][32] = {};
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const uint32_t group_id = lane >> 2, thread_in_group = lane % 4;
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t row = thread_in_group * 2 + (i & 1) + 8 * (i / 2);
      b[row][group_id] = Half16<T>(words.in[lane][4 + i / 2], i & 1);
    }
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = i < 2 ? group_id : group_id + 8;
      c[row][thread_in_group * 2 + (i & 1)] = std::bit_cast<float>(words.in[lane][8 + i]);
    }
    for (uint32_t i = 0; i < 8; i += 2) {
      const uint32_t row = i < 2 || (i >= 4 && i < 6) ? group_id : group_id + 8;
      const uint32_t first_column = i < 4 ? thread_in_group * 4 : thread_in_group * 4 + 16;
      // The figure of the metadata: with selector 0 lanes 0 and 1 of each four hold it, with 1
      // lanes 2 and 3. The first of them has columns 0 to 15, the second 16 to 31; the lower half
      // is of the row of the group's number, the upper one of that plus 8. In a half two bits are
      // the index of an element in its four columns, in the order of elements.
      const uint32_t holder = 4 * group_id + 2 * words.in[lane][13] + first_column / 16;
      const uint32_t half = Bits(words.in[holder][12], row < 8 ? 0 : 16, 16);
      const uint32_t pair = Bits(half, first_column % 16, 4);
      const uint32_t first = Bits(pair, 0, 2), second = Bits(pair, 2, 2);
      const uint32_t word = words.in[lane][i / 2];
      a[row][first_column + first] = Half16<T>(word, 0);
      a[row][first_column + second] = Half16<T>(word, 1);
      kept[row][first_column + first] = kept[row][first_column + second] = true;
      if (first >= second) a[row][first_column + first] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t k = 0; k < 32; ++k) {
      if (!kept[row][k]) continue;
      for (uint32_t column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = i < 2 ? lane >> 2 : (lane >> 2) + 8;
      words.out[lane][i] =
          std::bit_cast<uint32_t>(static_cast<float>(c[row][lane % 4 * 2 + (i & 1)]));
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
void MultiplySparseBFloat16(WarpWords& words) {
  MultiplySparse<BFloat16>(words);
}
void MultiplySparseHalf(WarpWords& words) {
  MultiplySparse<Half>(words);
}
void SpreadMatrices(WarpWords& words) {
  Spread<false>(words);
}
void SpreadTransposed(WarpWords& words) {
  Spread<true>(words);
}
void GatherTransposed(WarpWords& words) {
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const uint32_t matrix = lane / 8, column = lane % 8;
    const auto element = [&](uint32_t row) {
      return words.in[4 * row + column / 2][matrix] >> 16 * (column % 2) & 0xffffu;
    };
    for (uint32_t i = 0; i < 4; ++i) {
      words.out[lane][i] = element(2 * i) | element(2 * i + 1) << 16;
    }
  }
}

}  // namespace weft::host_cuda
