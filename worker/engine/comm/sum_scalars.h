#pragma once

#include <span>

#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// Replaces each value, on the host, by its sum over the ranks of the group, added in rank order.
Status SumScalars(Collective& group, std::span<double> values);

}  // namespace weft::engine
