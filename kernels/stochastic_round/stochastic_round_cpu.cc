#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/stochastic_round/stochastic_round.h"
#include "kernels/stochastic_round/stochastic_round_check.h"
#include "kernels/stochastic_round/stochastic_round_simd.h"

namespace weft::kernels::cpu {

Status StochasticRound(const Stream& stream, const StochasticRoundArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  WEFT_RETURN_IF_ERROR(CheckStochasticRound(stream, args));
  // Threads split at whole Philox blocks, and at cache lines.
  constexpr int64_t kUnit = 64, kGrainUnits = 256;
  const int64_t count = x.shape.Elements();
  ParallelFor((count + kUnit - 1) / kUnit, kGrainUnits, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kUnit;
    PickStochasticRoundKernels().run(
        args.key, (args.first_element + static_cast<uint64_t>(begin)) / 4, x.As<float>() + begin,
        y.As<BFloat16>() + begin, std::min(last * kUnit, count) - begin);
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
