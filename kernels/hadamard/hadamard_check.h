#pragma once

#include "kernels/hadamard/hadamard.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckHadamard(const Stream& stream, const HadamardArgs& args);

}  // namespace weft::kernels
