#pragma once

#include "kernels/patches/patches.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckUnfoldPatches(const Stream& stream, const UnfoldPatchesArgs& args);

/// The side of a square image of that many pixels, or 0.
int64_t SideOf(int64_t pixels);

}  // namespace weft::kernels
