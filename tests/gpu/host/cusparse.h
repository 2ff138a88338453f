#pragma once

#include <cstdint>

namespace weft::host_cuda {

// A cuSPARSE and a cuSPARSELt that multiply by definition, for tests: what matters is which calls
// are refused. They replace the libraries that LoadCusparse() and LoadCusparseLt() find; what they
// compute is work of its stream.

/// Calls since the start of the process.
struct CusparseCalls {
  int64_t products = 0;    ///< Of cuSPARSE.
  int64_t plans = 0;       ///< Of cuSPARSELt, as all that follow.
  int64_t compressed = 0;  ///< Matrices.
  int64_t multiplied = 0;  ///< Products.
};
CusparseCalls CountCusparseCalls();

/// Descriptors, plans and handles of both that were not destroyed.
int64_t CusparseObjectsAlive();

/// Whether the libraries are there from now on.
void SetCusparsePresent(bool present);

}  // namespace weft::host_cuda
