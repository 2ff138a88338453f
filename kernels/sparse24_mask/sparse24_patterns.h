#pragma once

#include <cstdint>

namespace weft::kernels {

/// The two elements that a row of four keeps, first < second.
struct KeptPair {
  uint8_t first, second;
};

inline constexpr int kPairs = 6;

/// By rising bits.
constexpr KeptPair kKeptPairs[kPairs] = {{0, 1}, {0, 2}, {1, 2}, {0, 3}, {1, 3}, {2, 3}};

/// A block of 4 x 4 with two kept in each row and column.
struct TransposablePattern {
  uint16_t bits;    ///< Bit 4 r + c: row r keeps column c.
  uint8_t pair[4];  ///< Of each row, its place in kKeptPairs.
};

inline constexpr int kTransposablePatterns = 90;

struct TransposablePatterns {
  TransposablePattern of[kTransposablePatterns];
};

constexpr TransposablePatterns ListTransposablePatterns() {
  TransposablePatterns patterns{};
  int count = 0;
  for (int number = 0; number < kPairs * kPairs * kPairs * kPairs; ++number) {
    TransposablePattern pattern{};
    int kept[4] = {};
    int rest = number;
    for (int row = 0; row < 4; ++row, rest /= kPairs) {
      pattern.pair[row] = static_cast<uint8_t>(rest % kPairs);
      const KeptPair pair = kKeptPairs[rest % kPairs];
      pattern.bits = static_cast<uint16_t>(pattern.bits | 1 << (4 * row + pair.first) |
                                           1 << (4 * row + pair.second));
      ++kept[pair.first];
      ++kept[pair.second];
    }
    if (kept[0] == 2 && kept[1] == 2 && kept[2] == 2 && kept[3] == 2)
      patterns.of[count++] = pattern;
  }
  return patterns;
}

/// All of them, by rising bits.
constexpr TransposablePatterns kTransposable = ListTransposablePatterns();

}  // namespace weft::kernels
