#include "kernels/stochastic_round/stochastic_round.h"

WEFT_NO_CUDA_OP(StochasticRound, StochasticRoundArgs)
