#pragma once

#include "kernels/cross_entropy/cross_entropy.h"

namespace weft::kernels {

/// What all back ends demand of the arguments, except the values of targets.
Status CheckCrossEntropy(const Stream& stream, const CrossEntropyArgs& args);
Status CheckMeasureLogitsPart(const Stream& stream, const MeasureLogitsPartArgs& args);
Status CheckCrossEntropyOfParts(const Stream& stream, const CrossEntropyOfPartsArgs& args);

}  // namespace weft::kernels
