#include "kernels/linear/linear_simd.h"

#include "kernels/cpu/vec.h"

namespace weft::kernels::cpu::WEFT_ISA {
namespace {

// Columns summed at a time: a whole cache line or more of each row.
constexpr int kVectors = 4;

template <class T>
void ColumnSums(const T* x, int64_t rows, int64_t stride, int64_t columns, bool accumulate,
                float* sums) {
  int64_t c = 0;
  for (; c + kVectors * kLanes <= columns; c += kVectors * kLanes) {
    VecF sum[kVectors] = {};
    for (int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[v] += Load(x + r * stride + c + v * kLanes);
    }
    for (int v = 0; v < kVectors; ++v) {
      float* to = sums + c + v * kLanes;
      Store(to, accumulate ? Load(to) + sum[v] : sum[v]);
    }
  }
  for (; c < columns; c += kLanes) {
    int64_t part = columns - c < kLanes ? columns - c : kLanes;
    VecF sum = {};
    for (int64_t r = 0; r < rows; ++r) sum += LoadUpTo(x + r * stride + c, part);
    StoreUpTo(sums + c, accumulate ? LoadUpTo(sums + c, part) + sum : sum, part);
  }
}

// Rows of a weight that a pass over x multiplies, each in this many partial sums: enough loads
// under way for the memory's rate.
constexpr int kRows = 4;
constexpr int kPartials = 2;

// Sums of kCount rows from `weight` on.
template <int kCount, class T>
WEFT_INLINE void RowSums(const float* x, const T* weight, int64_t stride, int64_t in, float* sums) {
  VecF partial[kCount][kPartials] = {};
  int64_t k = 0;
  for (; k + kPartials * kLanes <= in; k += kPartials * kLanes) {
    for (int p = 0; p < kPartials; ++p) {
      const VecF factor = Load(x + k + p * kLanes);
      for (int r = 0; r < kCount; ++r) {
        partial[r][p] = Fma(factor, Load(weight + r * stride + k + p * kLanes), partial[r][p]);
      }
    }
  }
  for (; k < in; k += kLanes) {
    const int64_t part = in - k < kLanes ? in - k : kLanes;
    const VecF factor = LoadUpTo(x + k, part);
    for (int r = 0; r < kCount; ++r) {
      partial[r][0] = Fma(factor, LoadUpTo(weight + r * stride + k, part), partial[r][0]);
    }
  }
  for (int r = 0; r < kCount; ++r) {
    VecF sum = partial[r][0];
    for (int p = 1; p < kPartials; ++p) sum += partial[r][p];
    sums[r] = ReduceAdd(sum);
  }
}

template <class T>
void RowProduct(const float* x, const T* weight, int64_t stride, int64_t out, int64_t in,
                const float* bias, float* y) {
  int64_t o = 0;
  for (; o + kRows <= out; o += kRows) RowSums<kRows>(x, weight + o * stride, stride, in, y + o);
  for (; o < out; ++o) RowSums<1>(x, weight + o * stride, stride, in, y + o);
  if (bias == nullptr) return;
  for (o = 0; o < out; o += kLanes) {
    const int64_t part = out - o < kLanes ? out - o : kLanes;
    StoreUpTo(y + o, LoadUpTo(y + o, part) + LoadUpTo(bias + o, part), part);
  }
}

}  // namespace

const LinearKernels kLinearKernels = {
    .f32 = {ColumnSums<float>, RowProduct<float>},
    .bf16 = {ColumnSums<BFloat16>, RowProduct<BFloat16>},
    .f16 = {ColumnSums<Half>, RowProduct<Half>},
};

}  // namespace weft::kernels::cpu::WEFT_ISA
