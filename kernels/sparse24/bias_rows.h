#pragma once

// A bias for products of libraries that add to what there is.

#include <string_view>

#include "kernels/cuda/row_map.h"

namespace weft::kernels::cuda {

/// Each row of `to` becomes the bias, rounded to T.
template <class T>
struct BiasRows {
  const float* bias;
  StridedRows<T> to;

  template <int kCount>
  __device__ void Apply(int64_t row, int64_t column) const {
    float values[kCount];
    LoadFloats(bias + column, values);
    StoreFloats(to.At(row, column), values);
  }
};

inline Status FillWithBias(const Stream& stream, std::string_view op, const TensorView& bias,
                           const TensorView& to) {
  return WithFloatType(to.dtype, [&]<class T>() {
    return LaunchRowMap<4>(stream, op, BiasRows<T>{bias.As<float>(), RowsOf<T>(to)}, to.shape[0],
                           to.shape[1], RowsAligned16(to) && Aligned16(bias.data));
  });
}

}  // namespace weft::kernels::cuda
