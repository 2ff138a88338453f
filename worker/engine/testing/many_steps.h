#pragma once

#include <cstdint>

namespace weft::engine {

/// Steps of a test that trains on a mesh, past the third, at which it logs. A mesh that leaves the
/// training of one rank does so within them: the second loss shows gradients and the update, the
/// third one the moments. Tests of what takes longer to happen have steps of their own.
inline constexpr int64_t kManyTrainedSteps = 4;

}  // namespace weft::engine
