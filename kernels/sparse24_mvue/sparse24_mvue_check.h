#pragma once

#include "kernels/sparse24_mvue/sparse24_mvue.h"

namespace weft::kernels {

/// kInvalid unless the arguments fit each other.
Status CheckMvue(const Stream& stream, const MvueArgs& args);

}  // namespace weft::kernels
