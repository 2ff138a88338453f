#include "kernels/stochastic_round/stochastic_round_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckStochasticRound(const Stream& stream, const StochasticRoundArgs& args) {
  return ArgumentCheck(stream, "StochasticRound")
      .ContiguousTensor("x", args.x, args.x.shape, {DType::kF32})
      .ContiguousTensor("y", args.y, args.x.shape, {DType::kBF16})
      .That(args.first_element % 4 == 0, "first_element is not a multiple of 4")
      .status();
}

}  // namespace weft::kernels
