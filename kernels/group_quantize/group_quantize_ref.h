#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "common/rng.h"

namespace weft::kernels::ref {

/// Quantised values of one group of finite numbers, whose element 0 has random number `first`, and
/// what they stand for: the truth in double, and in float the roundings of the contract.
template <class Real>
struct GroupCodes {
  Real least = 0;
  Real step = 0;
  std::vector<int> codes;

  Real Value(size_t i) const { return least + static_cast<Real>(codes[i]) * step; }
};

template <class Real>
GroupCodes<Real> GroupQuantize(std::span<const double> x, int bits, PhiloxKey key, uint64_t first) {
  const auto [least, largest] = std::minmax_element(x.begin(), x.end());
  const int most = (1 << bits) - 1;
  GroupCodes<Real> group;
  group.least = static_cast<Real>(*least);
  group.step = (static_cast<Real>(*largest) - group.least) / static_cast<Real>(most);
  const Real inverse = group.step > 0 ? 1 / group.step : 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t element = first + i;
    const float uniform = UniformFloat(Philox(key, element / 4).v[element % 4]);
    const Real place = (static_cast<Real>(x[i]) - group.least) * inverse;
    group.codes.push_back(std::min(static_cast<int>(std::floor(place + uniform)), most));
  }
  return group;
}

}  // namespace weft::kernels::ref
