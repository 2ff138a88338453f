#include "worker/engine/comm/pairwise_reduce.h"

#include <algorithm>
#include <bit>

#include "kernels/dtype.h"

namespace weft::engine {
namespace {

/// Elements that are reduced at a time; their f32 sums stay in the first-level cache.
constexpr int64_t kBlock = 1024;

template <class T, Reduction kReduction>
void ReduceBlock(std::span<const void* const> inputs, int64_t begin, int64_t count, float* result) {
  if (inputs.size() == 1) {
    const T* values = static_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < count; ++i) result[i] = ToFloat(values[i]);
    return;
  }
  const size_t left = std::bit_ceil(inputs.size()) / 2;
  float others[kBlock];
  ReduceBlock<T, kReduction>(inputs.first(left), begin, count, result);
  ReduceBlock<T, kReduction>(inputs.subspan(left), begin, count, others);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (kReduction == Reduction::kSum) {
      result[i] += others[i];
    } else {
      result[i] = others[i] > result[i] || others[i] != others[i] ? others[i] : result[i];
    }
  }
}

}  // namespace

void ReducePairwise(DType dtype, Reduction reduction, std::span<const void* const> inputs,
                    void* result, int64_t count) {
  WithFloatType(dtype, [&]<class T>() {
    float reduced[kBlock];
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t length = std::min(kBlock, count - begin);
      if (reduction == Reduction::kSum) {
        ReduceBlock<T, Reduction::kSum>(inputs, begin, length, reduced);
      } else {
        ReduceBlock<T, Reduction::kMax>(inputs, begin, length, reduced);
      }
      for (int64_t i = 0; i < length; ++i) {
        static_cast<T*>(result)[begin + i] = FromFloat<T>(reduced[i]);
      }
    }
  });
}

}  // namespace weft::engine
