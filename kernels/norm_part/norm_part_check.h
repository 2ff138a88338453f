#pragma once

#include "kernels/norm_part/norm_part.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckMeasureNormPart(const Stream& stream, const MeasureNormPartArgs& args);
Status CheckNormOfParts(const Stream& stream, const NormOfPartsArgs& args);
Status CheckMeasureNormGradientPart(const Stream& stream, const MeasureNormGradientPartArgs& args);
Status CheckNormGradientOfParts(const Stream& stream, const NormGradientOfPartsArgs& args);

}  // namespace weft::kernels
