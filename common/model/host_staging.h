#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

/// Of each of two pieces of pinned host memory through which weights go up to a CUDA device in
/// another type than they are stored in: enough that the copy of one hides what starting it costs,
/// few enough that it is in the caches when it is read.
inline constexpr size_t kHostStageBytes = size_t{4} << 20;
inline constexpr int64_t kHostStagingBytes = 2 * static_cast<int64_t>(kHostStageBytes);

}  // namespace weft
