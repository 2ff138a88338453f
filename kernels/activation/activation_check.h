#pragma once

#include "kernels/activation/activation.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckGeluForward(const Stream& stream, const GeluForwardArgs& args);
Status CheckGeluBackward(const Stream& stream, const GeluBackwardArgs& args);
Status CheckTanhForward(const Stream& stream, const TanhForwardArgs& args);
Status CheckTanhBackward(const Stream& stream, const TanhBackwardArgs& args);
Status CheckSquaredReluForward(const Stream& stream, const SquaredReluForwardArgs& args);
Status CheckSquaredReluBackward(const Stream& stream, const SquaredReluBackwardArgs& args);
Status CheckUnitForward(const Stream& stream, const UnitForwardArgs& args);
Status CheckUnitBackward(const Stream& stream, const UnitBackwardArgs& args);

}  // namespace weft::kernels
