#pragma once

#include "kernels/gather_rows/gather_rows.h"

namespace weft::kernels {

/// What all back ends demand of the arguments; not the indices themselves.
Status CheckGatherRows(const Stream& stream, const GatherRowsArgs& args);
Status CheckScatterRows(const Stream& stream, const ScatterRowsArgs& args);

}  // namespace weft::kernels
