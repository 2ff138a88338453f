#pragma once

#include "kernels/moe_route/moe_route.h"

namespace weft::kernels {

/// What all back ends demand of the arguments; not the experts themselves.
Status CheckMoeRoute(const Stream& stream, const MoeRouteArgs& args);
Status CheckMoeRouteBackward(const Stream& stream, const MoeRouteBackwardArgs& args);
Status CheckMoeDispatch(const Stream& stream, const MoeDispatchArgs& args);

}  // namespace weft::kernels
