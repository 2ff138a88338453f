#pragma once

#include "kernels/group_quantize/group_quantize.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckGroupQuantize(const Stream& stream, const GroupQuantizeArgs& args);
Status CheckGroupDequantize(const Stream& stream, const GroupDequantizeArgs& args);

}  // namespace weft::kernels
