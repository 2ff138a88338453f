#pragma once

#include "kernels/orthogonalize/orthogonalize.h"

namespace weft::kernels {

/// What all back ends demand of the arguments. Without elements there is no workspace.
Status CheckOrthogonalize(const Stream& stream, const OrthogonalizeArgs& args);

}  // namespace weft::kernels
