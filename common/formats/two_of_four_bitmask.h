#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

/// A matrix with two of four numbers as the library compressed-tensors writes it (format
/// "sparse-24-bitmask"): the numbers that count, and a bit for each number of the matrix.
struct TwoOfFourBitmask {
  std::vector<float> values;     ///< [rows, columns / 2]
  std::vector<uint8_t> bitmask;  ///< [rows, (columns + 7) / 8], first column in the lowest bit.
};

/// Whether of each four neighbours in a row two or more are zero. False unless `columns` is a
/// multiple of 4.
bool KeepsTwoOfFour(std::span<const float> matrix, int64_t columns);

/// Compresses a matrix for which KeepsTwoOfFour. Where four neighbours have fewer than two
/// non-zeros, it keeps their first zeros.
TwoOfFourBitmask CompressTwoOfFour(std::span<const float> matrix, int64_t columns);

/// The tensors of a compressed weight, which take the place of "<module>.weight".
struct TwoOfFourNames {
  std::string shape;       ///< i64 [2, 1]: rows and columns.
  std::string compressed;  ///< TwoOfFourBitmask::values
  std::string bitmask;     ///< u8
};
TwoOfFourNames TwoOfFourNamesOf(const std::string& module);

}  // namespace weft
