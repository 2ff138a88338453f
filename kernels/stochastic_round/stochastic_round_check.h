#pragma once

#include "kernels/stochastic_round/stochastic_round.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckStochasticRound(const Stream& stream, const StochasticRoundArgs& args);

}  // namespace weft::kernels
