#include "common/formats/two_of_four_bitmask.h"

#include <algorithm>

namespace weft {
namespace {

constexpr int64_t kGroup = 4, kKept = 2;

int64_t NumbersIn(const float* group) {
  return std::count_if(group, group + kGroup, [](float value) { return value != 0; });
}

}  // namespace

bool KeepsTwoOfFour(std::span<const float> matrix, int64_t columns) {
  if (columns % kGroup != 0) return false;
  for (size_t first = 0; first < matrix.size(); first += kGroup) {
    if (NumbersIn(&matrix[first]) > kKept) return false;
  }
  return true;
}

TwoOfFourBitmask CompressTwoOfFour(std::span<const float> matrix, int64_t columns) {
  const int64_t rows = std::ssize(matrix) / columns, bytes = (columns + 7) / 8;
  TwoOfFourBitmask made;
  made.values.reserve(static_cast<size_t>(rows * columns / kKept));
  made.bitmask.resize(static_cast<size_t>(rows * bytes));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t first = 0; first < columns; first += kGroup) {
      const float* group = &matrix[static_cast<size_t>(row * columns + first)];
      int64_t zeros = kKept - NumbersIn(group);
      for (int64_t k = 0; k < kGroup; ++k) {
        if (group[k] == 0 && zeros-- <= 0) continue;
        made.values.push_back(group[k]);
        const int64_t column = first + k;
        made.bitmask[static_cast<size_t>(row * bytes + column / 8)] |=
            static_cast<uint8_t>(1U << (column % 8));
      }
    }
  }
  return made;
}

TwoOfFourNames TwoOfFourNamesOf(const std::string& module) {
  return {module + ".shape", module + ".compressed", module + ".bitmask"};
}

}  // namespace weft
