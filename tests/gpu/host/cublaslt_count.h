#pragma once

#include <cstdint>

namespace weft::host_cuda {

/// How often this thread has asked cuBLASLt for an algorithm.
int64_t CublasLtHeuristics();

}  // namespace weft::host_cuda
