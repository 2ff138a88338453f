#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::host_cuda {

/// Calls of AllocatePinnedMemory since the start of the process.
int64_t PinnedAllocations();

/// Bytes that may be page-locked from now on, all allocations together.
void LimitPinnedMemory(size_t bytes);

}  // namespace weft::host_cuda
