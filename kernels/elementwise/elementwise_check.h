#pragma once

#include "kernels/elementwise/elementwise.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckCast(const Stream& stream, const CastArgs& args);
Status CheckAdd(const Stream& stream, const AddArgs& args);
Status CheckFill(const Stream& stream, const FillArgs& args);
Status CheckScale(const Stream& stream, const ScaleArgs& args);
Status CheckAddScaled(const Stream& stream, const AddScaledArgs& args);
Status CheckAddSign(const Stream& stream, const AddSignArgs& args);
Status CheckApplyMask(const Stream& stream, const ApplyMaskArgs& args);

}  // namespace weft::kernels
