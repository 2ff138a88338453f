#pragma once

// Loops of the squared ReLU over contiguous elements on a CPU, by one thread.

#include <algorithm>
#include <cstdint>

#include "kernels/activation/squared_relu.h"
#include "kernels/dtype.h"

namespace weft::kernels::cpu {

/// Calls fn(group, first, count) for each four of the elements of x; the last may have fewer.
template <class T, class Fn>
void ForSquaredReluGroups(const T* x, int64_t count, bool two_of_four, const Fn& fn) {
  constexpr int64_t kGroup = 4;
  for (int64_t first = 0; first < count; first += kGroup) {
    const auto own = static_cast<int>(std::min(kGroup, count - first));
    SquaredReluGroup group = {};
    for (int k = 0; k < own; ++k) group.x[k] = ToFloat(x[first + k]);
    if (two_of_four) group.KeepTwo();
    fn(group, first, own);
  }
}

/// SquaredReluForward of `count` elements.
template <class T>
void SquaredReluForwardLoop(const T* x, T* y, int64_t count, bool two_of_four) {
  ForSquaredReluGroups(x, count, two_of_four,
                       [=](const SquaredReluGroup& group, int64_t first, int own) {
                         for (int k = 0; k < own; ++k) y[first + k] = FromFloat<T>(group.Value(k));
                       });
}

/// SquaredReluBackward of them; y may be null.
template <class T>
void SquaredReluBackwardLoop(const T* dy, const T* x, T* dx, T* y, int64_t count,
                             bool two_of_four) {
  ForSquaredReluGroups(
      x, count, two_of_four, [=](const SquaredReluGroup& group, int64_t first, int own) {
        for (int k = 0; k < own; ++k) {
          dx[first + k] = FromFloat<T>(ToFloat(dy[first + k]) * group.Derivative(k));
          if (y != nullptr) y[first + k] = FromFloat<T>(group.Value(k));
        }
      });
}

}  // namespace weft::kernels::cpu
