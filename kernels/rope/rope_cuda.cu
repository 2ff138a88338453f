#include "kernels/cuda/row_map.h"
#include "kernels/rope/rope.h"
#include "kernels/rope/rope_check.h"

namespace weft::kernels::cuda {
namespace {

// A row's elements are its pairs here, those of a head after those of the one before.
template <class T>
struct RopeMap {
  StridedRows<T> x;
  const int32_t* positions;
  const float* cosines;
  const float* sines;
  int64_t table_rows;
  unsigned half;
  float sign;

  template <int kCount>
  __device__ void Apply(int64_t token, int64_t pair) const {
    const unsigned head = static_cast<unsigned>(pair) / half;
    const unsigned within = static_cast<unsigned>(pair) - head * half;
    const int64_t position = positions[token];
    float cosine[kCount], sine[kCount];
    if (position >= 0 && position < table_rows) {
      LoadFloats(cosines + position * half + within, cosine);
      LoadFloats(sines + position * half + within, sine);
    } else {
#pragma unroll
      for (int k = 0; k < kCount; ++k) cosine[k] = sine[k] = NAN;
    }
    T* first = x.At(token, int64_t{2} * head * half + within);
    T* second = first + half;
    const Packed<T, kCount> a = LoadPacked<kCount>(first), b = LoadPacked<kCount>(second);
    float turned_a[kCount], turned_b[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      turned_a[k] = a[k] * cosine[k] - b[k] * (sine[k] * sign);
      turned_b[k] = b[k] * cosine[k] + a[k] * (sine[k] * sign);
    }
    StoreFloats(first, turned_a);
    StoreFloats(second, turned_b);
  }
};

}  // namespace

Status Rope(const Stream& stream, const RopeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckRope(stream, args));
  const TensorView& x = args.x;
  const int64_t half = args.cosines.shape[1];
  return WithFloatType(x.dtype, [&]<class T>() {
    const RopeMap<T> map = {.x = RowsOf<T>(x),
                            .positions = args.positions.As<int32_t>(),
                            .cosines = args.cosines.As<float>(),
                            .sines = args.sines.As<float>(),
                            .table_rows = args.cosines.shape[0],
                            .half = static_cast<unsigned>(half),
                            .sign = args.inverse ? -1.0f : 1.0f};
    // An access must not reach from one head into the next.
    const bool aligned =
        half % kWide<T> == 0 && RowsAligned16(x) && Aligned16(map.cosines, map.sines);
    return LaunchRowMap<kWide<T>>(stream, "Rope", map, x.shape[0], x.shape[1] / 2, aligned);
  });
}

}  // namespace weft::kernels::cuda
