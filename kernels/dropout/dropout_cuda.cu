#include "kernels/cuda/map.h"
#include "kernels/cuda/random_words.h"
#include "kernels/dropout/dropout.h"
#include "kernels/dropout/dropout_check.h"
#include "kernels/step_value.h"

namespace weft::kernels::cuda {
namespace {

template <class T>
struct DropoutMap {
  const T* x;
  T* y;
  DropoutDraw draw;
  StepValue<uint32_t> step;
  uint64_t first_element;
  int64_t columns, row_stride;  // of a part; 0: x is whole

  __device__ uint64_t ElementOf(int64_t i) const {
    const int64_t place = columns == 0 ? i : i / columns * row_stride + i % columns;
    return first_element + static_cast<uint64_t>(place);
  }
  template <int kCount>
  __device__ auto Load(int64_t i) const {
    return LoadPacked<kCount>(x + i);
  }
  template <int kCount>
  __device__ void Store(int64_t i, const Packed<T, kCount>& loaded) const {
    uint32_t words[kCount];
    RandomWords({draw.key.seed, step.Get(), draw.key.site}, ElementOf(i), words);
    float values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const bool dropped = static_cast<int32_t>(words[k] >> 8) < draw.threshold;
      values[k] = dropped ? 0.0f : loaded[k] * draw.scale;
    }
    StoreFloats(y + i, values);
  }
};

}  // namespace

Status Dropout(const Stream& stream, const DropoutArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckDropout(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const DropoutMap<T> map = {
        args.x.As<T>(),     args.y.As<T>(), DrawOf(args),   {args.key.step, args.step},
        args.first_element, args.columns,   args.row_stride};
    // What one thread draws is in one row.
    const bool whole = args.columns % kWide<T> == 0 && args.row_stride % kWide<T> == 0;
    return LaunchMap<kWide<T>>(stream, "Dropout", map, args.x.shape.Elements(),
                               whole && Aligned16(map.x, map.y));
  });
}

}  // namespace weft::kernels::cuda
