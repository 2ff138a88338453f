#include "kernels/cuda/map.h"
#include "kernels/sparse24_decay/sparse24_decay.h"
#include "kernels/sparse24_decay/sparse24_decay_check.h"

namespace weft::kernels::cuda {
namespace {

/// The bits of a mask, and where elements are in it.
struct MaskBits {
  const uint16_t* bits;
  int64_t blocks;  ///< In a row of the mask.
  int64_t first;   ///< Element of the matrix at which counting begins.

  __device__ bool Keeps(int64_t i) const {
    const int64_t element = first + i, columns = 4 * blocks;
    const int64_t row = element / columns, column = element % columns;
    const int bit = static_cast<int>(4 * (row % 4) + column % 4);
    return (bits[row / 4 * blocks + column / 4] >> bit & 1) != 0;
  }
};

MaskBits BitsOf(const TensorView& mask, int64_t first) {
  return {mask.As<uint16_t>(), mask.shape[1], first};
}

__device__ bool IsMade(const UpdateGate& gate) {
  return gate.made == nullptr || *gate.made != 0;
}

// y += rate x, of the elements that the mask leaves out. Product and sum are not fused, as they
// are not on a CPU.
template <class T, class Rate>
struct DecayMap {
  const T* x;
  float* y;
  MaskBits mask;
  UpdateGate gate;
  Rate rate;

  template <int kCount>
  __device__ auto Load(int64_t i) const {
    return PackedPair<T, float, kCount>{LoadPacked<kCount>(x + i), LoadPacked<kCount>(y + i)};
  }
  template <int kCount>
  __device__ void Store(int64_t i, const PackedPair<T, float, kCount>& loaded) const {
    const float factor = gate.factor == nullptr ? 1.0f : *gate.factor;
    if (!IsMade(gate) || factor == 0) return;
    const float times = rate(factor);
    float values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      values[k] = loaded.b[k];
      if (!mask.Keeps(i + k)) values[k] = __fadd_rn(values[k], __fmul_rn(times, loaded.a[k]));
    }
    StoreFloats(y + i, values);
  }
};

struct OfGradients {
  float decay;
  __device__ float operator()(float factor) const { return decay / factor; }
};

struct OfWeights {
  float decay;
  StepValue<float> learning_rate;
  __device__ float operator()(float) const { return -(learning_rate.Get() * decay); }
};

}  // namespace

Status MaskedDecay(const Stream& stream, const MaskedDecayArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMaskedDecay(stream, args));
  const auto launch = [&]<class T>() {
    return LaunchMap<kWide<T>>(stream, "MaskedDecay",
                               DecayMap<T, OfGradients>{args.weight.As<T>(),
                                                        args.gradient.As<float>(),
                                                        BitsOf(args.mask, args.first),
                                                        args.gate,
                                                        {args.decay}},
                               args.weight.shape[0],
                               Aligned16(args.weight.data, args.gradient.data));
  };
  return args.weight.dtype == DType::kBF16 ? launch.template operator()<BFloat16>()
                                           : launch.template operator()<float>();
}

Status MaskedWeightDecay(const Stream& stream, const MaskedWeightDecayArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMaskedDecay(stream, args));
  auto* weight = args.weight.As<float>();
  return LaunchMap<kWide<float>>(stream, "MaskedWeightDecay",
                                 DecayMap<float, OfWeights>{weight,
                                                            weight,
                                                            BitsOf(args.mask, args.first),
                                                            {nullptr, args.gate.made},
                                                            {args.decay, args.learning_rate}},
                                 args.weight.shape[0], Aligned16(weight));
}

}  // namespace weft::kernels::cuda
