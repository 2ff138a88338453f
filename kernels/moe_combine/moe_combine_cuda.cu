#include "kernels/cuda/row_map.h"
#include "kernels/moe_combine/moe_combine.h"
#include "kernels/moe_combine/moe_combine_check.h"

namespace weft::kernels::cuda {
namespace {

template <class T>
struct CombineMap {
  StridedRows<const T> x;
  StridedRows<T> y;
  const int32_t* places;
  const float* weights;  ///< nullptr: 1
  int k;
  int64_t rows;  ///< Of x.

  template <int kCount>
  __device__ void Apply(int64_t token, int64_t column) const {
    float sum[kCount] = {};
    const int64_t first = token * k;
    for (int i = 0; i < k; ++i) {
      const int32_t place = places[first + i];
      if (place == -1) continue;
      float values[kCount];
      if (place >= 0 && place < rows) {
        LoadFloats(x.At(place, column), values);
      } else {
#pragma unroll
        for (int c = 0; c < kCount; ++c) values[c] = NAN;
      }
      const float weight = weights != nullptr ? weights[first + i] : 1.0f;
#pragma unroll
      for (int c = 0; c < kCount; ++c) sum[c] += weight * values[c];
    }
    StoreFloats(y.At(token, column), sum);
  }
};

template <class T>
struct Choices {
  StridedRows<const T> dy;
  StridedRows<const T> x;
  StridedRows<T> dx;
  const int32_t* places;
  const float* weights;
  float* dweights;
  int64_t count;
  int64_t k;
  int64_t rows;  ///< Of x.
  int64_t width;

  // The gradient of kCount elements from `column` on; returns their part of the weight's.
  template <int kCount>
  __device__ float Apply(int64_t token, int64_t place, float weight, int64_t column) const {
    const Packed<T, kCount> values = LoadPacked<kCount>(x.At(place, column));
    const Packed<T, kCount> gradients = LoadPacked<kCount>(dy.At(token, column));
    float sum = 0, out[kCount];
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      sum += gradients[c] * values[c];
      out[c] = weight * gradients[c];
    }
    StoreFloats(dx.At(place, column), out);
    return sum;
  }
};

// A warp for each choice.
template <int kCount, class T>
__global__ void __launch_bounds__(kBlockThreads) CombineBackwardKernel(Choices<T> choices) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t i =
      int64_t{blockIdx.x} * (kBlockThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
  if (i >= choices.count) return;
  const int64_t place = choices.places[i], token = i / choices.k;
  float sum = place == -1 ? 0.0f : NAN;
  if (place >= 0 && place < choices.rows) {
    const float weight = choices.weights[i];
    const int64_t wide = choices.width / kCount * kCount;
    sum = 0;
    for (int64_t column = lane * kCount; column < wide; column += kWarp * kCount) {
      sum += choices.template Apply<kCount>(token, place, weight, column);
    }
    for (int64_t column = wide + lane; column < choices.width; column += kWarp) {
      sum += choices.template Apply<1>(token, place, weight, column);
    }
    sum = WarpSum(sum);
  }
  if (lane == 0) choices.dweights[i] = sum;
}

}  // namespace

Status MoeCombine(const Stream& stream, const MoeCombineArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeCombine(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const CombineMap<T> map = {RowsOf<const T>(args.x),
                               RowsOf<T>(args.y),
                               args.places.As<int32_t>(),
                               args.weights ? args.weights.As<float>() : nullptr,
                               static_cast<int>(args.places.shape[1]),
                               args.x.shape[0]};
    return LaunchRowMap<kWide<T>>(stream, "MoeCombine", map, args.y.shape[0], args.y.shape[1],
                                  RowsAligned16(args.x, args.y));
  });
}

Status MoeCombineBackward(const Stream& stream, const MoeCombineBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeCombineBackward(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const Choices<T> choices = {RowsOf<const T>(args.dy),
                                RowsOf<const T>(args.x),
                                RowsOf<T>(args.dx),
                                args.places.As<int32_t>(),
                                args.weights.As<float>(),
                                args.dweights.As<float>(),
                                args.places.shape.Elements(),
                                args.places.shape[1],
                                args.x.shape[0],
                                args.x.shape[1]};
    const LaunchShape shape = {.grid = {CeilDiv(choices.count, kBlockThreads / kWarp)},
                               .block = {kBlockThreads}};
    const bool aligned = RowsAligned16(args.dy, args.x, args.dx);
    return Launch(stream, "MoeCombineBackward", shape,
                  aligned ? CombineBackwardKernel<kWide<T>, T> : CombineBackwardKernel<1, T>,
                  choices);
  });
}

}  // namespace weft::kernels::cuda
