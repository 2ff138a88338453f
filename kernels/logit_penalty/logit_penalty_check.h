#pragma once

#include "kernels/logit_penalty/logit_penalty.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckLogitPenalty(const Stream& stream, const LogitPenaltyArgs& args);

}  // namespace weft::kernels
