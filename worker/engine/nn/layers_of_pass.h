#pragma once

#include <cstdint>
#include <functional>

namespace weft::engine {

/// How many layers a pass runs in step `step`. `trains`: it is differentiated; evaluation and
/// generation are not.
using LayersOfPass = std::function<int64_t(int64_t step, bool trains)>;

}  // namespace weft::engine
