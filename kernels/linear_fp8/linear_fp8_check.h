#pragma once

#include "kernels/linear_fp8/linear_fp8.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckMatmulFp8(const Stream& stream, const MatmulFp8Args& args);

}  // namespace weft::kernels
