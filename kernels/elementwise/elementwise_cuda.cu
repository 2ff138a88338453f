#include "kernels/cuda/map.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/elementwise/elementwise_check.h"

namespace weft::kernels::cuda {
namespace {

struct Same {
  __device__ float operator()(float x) const { return x; }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

struct Multiply {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

struct KeepAndAdd {
  float keep, factor;
  __device__ float operator()(float y, float x) const { return y * keep + x * factor; }
};

struct AddSignOf {
  float factor;
  __device__ float operator()(float y, float x) const {
    return y + (x > 0 ? factor : x < 0 ? -factor : 0.0f);
  }
};

// Fills elements of any type, by their bits.
template <class Bits>
struct FillMap {
  Bits* x;
  uint32_t word;  ///< The value's bits, as often as they fit.

  template <int kCount>
  __device__ auto Load(int64_t) const {
    return 0;
  }
  template <int kCount>
  __device__ void Store(int64_t i, int) const {
    if constexpr (kCount == 1) {
      x[i] = static_cast<Bits>(word);
    } else {
      ptx::Store16(x + i, uint4{word, word, word, word});
    }
  }
};

template <class T>
struct MaskMap {
  T* x;
  const uint8_t* mask;

  template <int kCount>
  struct Loaded {
    Packed<T, kCount> x;
    uint32_t words[(kCount + 3) / 4];  ///< Of the mask.
  };

  template <int kCount>
  __device__ auto Load(int64_t i) const {
    Loaded<kCount> loaded = {LoadPacked<kCount>(x + i), {}};
    if constexpr (kCount == 1) {
      loaded.words[0] = mask[i];
    } else {
      const auto* words = reinterpret_cast<const uint32_t*>(mask + i);
#pragma unroll
      for (int w = 0; w < kCount / 4; ++w) loaded.words[w] = words[w];
    }
    return loaded;
  }
  template <int kCount>
  __device__ void Store(int64_t i, const Loaded<kCount>& loaded) const {
    float values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const bool keep = (loaded.words[k / 4] >> (8 * (k % 4)) & 0xff) != 0;
      values[k] = keep ? loaded.x[k] : 0.0f;
    }
    StoreFloats(x + i, values);
  }
};

template <class In, class Out>
Status CastTo(const Stream& stream, const CastArgs& args) {
  // As many elements at a time as are 16 bytes of the narrower type, which makes two accesses of
  // the wider one.
  constexpr int kCount = kWide < In >> kWide<Out> ? kWide<In> : kWide<Out>;
  return LaunchMap<kCount>(stream, "Cast",
                           UnaryMap<In, Out, Same>{args.x.As<In>(), args.y.As<Out>(), {}},
                           args.x.shape.Elements(), Aligned16(args.x.data, args.y.data));
}

}  // namespace

Status Cast(const Stream& stream, const CastArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCast(stream, args));
  return WithFloatType(args.x.dtype, [&]<class In>() {
    return WithFloatType(args.y.dtype, [&]<class Out>() {
      // The check lets no two narrow types pass.
      if constexpr (std::is_same_v<In, float> || std::is_same_v<Out, float> ||
                    std::is_same_v<In, Out>) {
        return CastTo<In, Out>(stream, args);
      } else {
        return InternalError("Cast: neither x nor y is f32");
      }
    });
  });
}

Status Add(const Stream& stream, const AddArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAdd(stream, args));
  return WithFloatType(args.a.dtype, [&]<class T>() {
    return LaunchMap<kWide<T>>(
        stream, "Add", BinaryMap<T, T, T, Sum>{args.a.As<T>(), args.b.As<T>(), args.y.As<T>(), {}},
        args.a.shape.Elements(), Aligned16(args.a.data, args.b.data, args.y.data));
  });
}

Status Fill(const Stream& stream, const FillArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckFill(stream, args));
  const int64_t count = args.x.shape.Elements();
  const bool aligned = Aligned16(args.x.data);
  if (DTypeSize(args.x.dtype) == 4) {
    const uint32_t word = args.x.dtype == DType::kI32
                              ? static_cast<uint32_t>(static_cast<int32_t>(args.value))
                              : std::bit_cast<uint32_t>(args.value);
    return LaunchMap<4>(stream, "Fill",
                        FillMap<uint32_t>{static_cast<uint32_t*>(args.x.data), word}, count,
                        aligned);
  }
  const uint32_t half =
      args.x.dtype == DType::kBF16 ? ToBFloat16(args.value).bits : ToHalf(args.value).bits;
  return LaunchMap<8>(stream, "Fill",
                      FillMap<uint16_t>{static_cast<uint16_t*>(args.x.data), half | half << 16},
                      count, aligned);
}

Status Scale(const Stream& stream, const ScaleArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckScale(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return LaunchMap<kWide<T>>(
        stream, "Scale", UnaryMap<T, T, Multiply>{args.x.As<T>(), args.x.As<T>(), {args.factor}},
        args.x.shape.Elements(), Aligned16(args.x.data));
  });
}

Status AddScaled(const Stream& stream, const AddScaledArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAddScaled(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const int64_t count = args.x.shape.Elements();
    const bool aligned = Aligned16(args.x.data, args.y.data);
    const T* x = args.x.As<T>();
    float* y = args.y.As<float>();
    if (args.keep == 0) {
      return LaunchMap<kWide<T>>(stream, "AddScaled",
                                 UnaryMap<T, float, Multiply>{x, y, {args.factor}}, count, aligned);
    }
    return LaunchMap<kWide<T>>(
        stream, "AddScaled",
        BinaryMap<float, T, float, KeepAndAdd>{y, x, y, {args.keep, args.factor}}, count, aligned);
  });
}

Status AddSign(const Stream& stream, const AddSignArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAddSign(stream, args));
  const float* x = args.x.As<float>();
  float* y = args.y.As<float>();
  return LaunchMap<kWide<float>>(stream, "AddSign",
                                 BinaryMap<float, float, float, AddSignOf>{y, x, y, {args.factor}},
                                 args.x.shape.Elements(), Aligned16(args.x.data, args.y.data));
}

Status ApplyMask(const Stream& stream, const ApplyMaskArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckApplyMask(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return LaunchMap<kWide<T>>(stream, "ApplyMask",
                               MaskMap<T>{args.x.As<T>(), args.mask.As<uint8_t>()},
                               args.x.shape.Elements(), Aligned16(args.x.data, args.mask.data));
  });
}

}  // namespace weft::kernels::cuda
