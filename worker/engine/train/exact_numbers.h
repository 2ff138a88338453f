#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/exact_sum.h"

namespace weft::engine {

/// Numbers as which ranks add up a sum without rounding and a count.
inline constexpr size_t kExactNumbers = ExactSum::kParts + 1;

inline void AppendTo(std::vector<double>& numbers, const ExactSum& sum, int64_t count) {
  const auto parts = sum.Parts();
  numbers.insert(numbers.end(), parts.begin(), parts.end());
  numbers.push_back(static_cast<double>(count));
}

/// Reads a sum and a count from kExactNumbers numbers.
inline void TakeFrom(std::span<const double> numbers, ExactSum& sum, int64_t& count) {
  sum = ExactSum::FromParts(numbers.first<ExactSum::kParts>());
  count = static_cast<int64_t>(numbers[ExactSum::kParts]);
}

}  // namespace weft::engine
