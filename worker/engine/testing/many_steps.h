#pragma once

#include <cstdint>

namespace weft::engine {

/// Steps of a test that trains, past the third, at which it logs: a sanitizer learns little from
/// more.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int64_t kManyTrainedSteps = 4;
#else
inline constexpr int64_t kManyTrainedSteps = 10;
#endif

}  // namespace weft::engine
