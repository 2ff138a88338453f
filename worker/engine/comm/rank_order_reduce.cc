#include "worker/engine/comm/rank_order_reduce.h"

#include <algorithm>

#include "kernels/dtype.h"

namespace weft::engine {
namespace {

/// Elements that are reduced at a time; their f32 sums stay in the first-level cache.
constexpr int64_t kBlock = 1024;

template <class T, Reduction kReduction>
void ReduceBlock(std::span<const void* const> inputs, int64_t begin, int64_t count, T* result) {
  float sums[kBlock];
  const T* first = static_cast<const T*>(inputs[0]) + begin;
  for (int64_t i = 0; i < count; ++i) sums[i] = ToFloat(first[i]);
  for (const void* input : inputs.subspan(1)) {
    const T* values = static_cast<const T*>(input) + begin;
    for (int64_t i = 0; i < count; ++i) {
      const float value = ToFloat(values[i]);
      if constexpr (kReduction == Reduction::kSum) {
        sums[i] += value;
      } else {
        sums[i] = value > sums[i] || value != value ? value : sums[i];
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) result[begin + i] = FromFloat<T>(sums[i]);
}

}  // namespace

void ReduceInRankOrder(DType dtype, Reduction reduction, std::span<const void* const> inputs,
                       void* result, int64_t count) {
  WithFloatType(dtype, [&]<class T>() {
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t length = std::min(kBlock, count - begin);
      if (reduction == Reduction::kSum) {
        ReduceBlock<T, Reduction::kSum>(inputs, begin, length, static_cast<T*>(result));
      } else {
        ReduceBlock<T, Reduction::kMax>(inputs, begin, length, static_cast<T*>(result));
      }
    }
  });
}

}  // namespace weft::engine
