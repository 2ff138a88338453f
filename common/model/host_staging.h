#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

/// Bytes of each of two pinned staging buffers, through which weights go up to a CUDA device in
/// another type than they are stored in. Large enough that the copy hides the cost of its start,
/// small enough to be in the caches when it is read.
inline constexpr size_t kHostStageBytes = size_t{4} << 20;
inline constexpr int64_t kHostStagingBytes = 2 * static_cast<int64_t>(kHostStageBytes);

}  // namespace weft
