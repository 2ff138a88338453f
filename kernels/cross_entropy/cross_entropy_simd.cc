#include "kernels/cross_entropy/cross_entropy_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();

template <class T>
float RowMax(const T* logits, int64_t count) {
  VecF largest[4] = {Set(-kInfinity), Set(-kInfinity), Set(-kInfinity), Set(-kInfinity)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int v = 0; v < 4; ++v) largest[v] = Max(largest[v], Load(logits + i + v * kLanes));
  }
  for (; i < count; i += kLanes) {
    largest[0] = Max(largest[0], LoadUpTo(logits + i, count - i, -kInfinity));
  }
  return ReduceMax(Max(Max(largest[0], largest[1]), Max(largest[2], largest[3])));
}

// Sum of exp(logits - max), each kept in `exponentials` when there is such memory.
template <bool kKeep, class T>
float RowExpSum(const T* logits, int64_t count, float max, float* exponentials) {
  // Two sums, so that the additions of 50,000 terms do not wait for each other.
  VecF sum[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    for (int v = 0; v < 2; ++v) {
      VecF e = Exp(Load(logits + i + v * kLanes) - max);
      sum[v] += e;
      if (kKeep) Store(exponentials + i + v * kLanes, e);
    }
  }
  for (; i < count; i += kLanes) {
    VecF e = Exp(LoadUpTo(logits + i, count - i, -kInfinity) - max);
    sum[0] += e;
    if (kKeep) StoreUpTo(exponentials + i, e, count - i);
  }
  return ReduceAdd(sum[0] + sum[1]);
}

template <class T>
float Row(T* logits, int64_t columns, int64_t vocabulary, int64_t target, float grad_scale,
          float* scratch) {
  float max = RowMax(logits, vocabulary);
  float at_target[kLanes];
  Store(at_target, LoadPart(logits + target, 1));
  bool write = scratch != nullptr;
  float sum = write ? RowExpSum<true>(logits, vocabulary, max, scratch)
                    : RowExpSum<false>(logits, vocabulary, max, scratch);
  if (write) {
    VecF factor = Set(grad_scale / sum);
    int64_t i = 0;
    for (; i + kLanes <= vocabulary; i += kLanes) Store(logits + i, Load(scratch + i) * factor);
    StoreUpTo(logits + i, LoadUpTo(scratch + i, vocabulary - i) * factor, vocabulary - i);
    for (i = vocabulary; i < columns; i += kLanes) StoreUpTo(logits + i, VecF{}, columns - i);
    StorePart(logits + target, Set(grad_scale * (scratch[target] / sum - 1.0f)), 1);
  }
  return __builtin_logf(sum) + (max - at_target[0]);
}

template <class T>
void Measure(const T* logits, int64_t count, float* largest, float* sum) {
  *largest = RowMax(logits, count);
  *sum = RowExpSum<false>(logits, count, *largest, nullptr);
}

template <class T>
void Softmax(T* logits, int64_t columns, int64_t count, float largest, float factor) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Store(logits + i, Exp(Load(logits + i) - largest) * factor);
  }
  if (i < count) {
    StorePart(logits + i, Exp(LoadPart(logits + i, count - i) - largest) * factor, count - i);
  }
  for (i = count; i < columns; i += kLanes) StoreUpTo(logits + i, VecF{}, columns - i);
}

template <class T>
constexpr CrossEntropyRow<T> kRowOf = {Row<T>, Measure<T>, Softmax<T>};

}  // namespace

const CrossEntropyKernels kCrossEntropyKernels = {
    .f32 = kRowOf<float>,
    .bf16 = kRowOf<BFloat16>,
    .f16 = kRowOf<Half>,
};

}  // namespace weft::kernels::cpu::WEFT_ISA
