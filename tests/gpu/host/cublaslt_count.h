#pragma once

#include <cstdint>

namespace weft::host_cuda {

/// How often this thread has asked cuBLASLt for an algorithm.
int64_t CublasLtHeuristics();

/// How many products with GELU, or its derivative, it has asked for.
int64_t CublasLtGelus();

}  // namespace weft::host_cuda
