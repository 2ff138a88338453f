#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "common/rng.h"

namespace weft::kernels::ref {

/// Float64 codes of one group of finite numbers, element 0 of which has random number `first`, and
/// what they stand for.
struct GroupCodes {
  double least = 0;
  double step = 0;
  std::vector<int> codes;

  double Value(size_t i) const { return least + codes[i] * step; }
};

inline GroupCodes GroupQuantize(std::span<const double> x, int bits, PhiloxKey key,
                                uint64_t first) {
  const auto [least, largest] = std::minmax_element(x.begin(), x.end());
  GroupCodes group{*least, (*largest - *least) / ((1 << bits) - 1), {}};
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t element = first + i;
    const double uniform = UniformFloat(Philox(key, element / 4).v[element % 4]);
    const double place = group.step > 0 ? (x[i] - group.least) / group.step : 0;
    group.codes.push_back(std::min(static_cast<int>(std::floor(place + uniform)), (1 << bits) - 1));
  }
  return group;
}

}  // namespace weft::kernels::ref
