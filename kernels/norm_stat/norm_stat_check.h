#pragma once

#include "kernels/norm_stat/norm_stat.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckNormStat(const Stream& stream, const NormStatArgs& args);

}  // namespace weft::kernels
