#include "kernels/cuda/map.h"
#include "kernels/cuda/random_words.h"
#include "kernels/cuda/stochastic_round.h"
#include "kernels/stochastic_round/stochastic_round.h"
#include "kernels/stochastic_round/stochastic_round_check.h"

namespace weft::kernels::cuda {
namespace {

struct RoundMap {
  const float* x;
  BFloat16* y;
  PhiloxKey key;
  uint64_t first_element;

  template <int kCount>
  __device__ auto Load(int64_t i) const {
    return LoadPacked<kCount>(x + i);
  }
  template <int kCount>
  __device__ void Store(int64_t i, const Packed<float, kCount>& loaded) const {
    uint32_t words[kCount];
    RandomWords(key, first_element + static_cast<uint64_t>(i), words);
    if constexpr (kCount == 1) {
      y[i] = RoundStochastically(loaded[0], words[0]);
    } else {
      static_assert(kCount == kWide<BFloat16>);
      uint32_t pairs[kCount / 2];
#pragma unroll
      for (int k = 0; k < kCount; k += 2) {
        const uint32_t low = RoundStochastically(loaded[k], words[k]).bits;
        const uint32_t high = RoundStochastically(loaded[k + 1], words[k + 1]).bits;
        pairs[k / 2] = low | high << 16;
      }
      ptx::Store16(y + i, uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
    }
  }
};

}  // namespace

Status StochasticRound(const Stream& stream, const StochasticRoundArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckStochasticRound(stream, args));
  const RoundMap map = {args.x.As<float>(), args.y.As<BFloat16>(), args.key, args.first_element};
  return LaunchMap<kWide<BFloat16>>(stream, "StochasticRound", map, args.x.shape.Elements(),
                                    Aligned16(map.x, map.y));
}

}  // namespace weft::kernels::cuda
