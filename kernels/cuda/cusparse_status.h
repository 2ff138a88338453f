#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace weft::kernels::cuda {

/// The failed call of a library of sparse matrices on behalf of `op`, with what `library` says of
/// it; kExhausted where it had no memory. OK for 0. CusparseLibrary and CusparseLtLibrary have the
/// same numbers.
template <class Library>
Status CusparseStatus(const Library& library, std::string_view op, std::string_view call,
                      int status) {
  constexpr int kNoMemory = 2;
  if (status == 0) return OkStatus();
  std::string message =
      std::string(op) + ": " + std::string(call) + ": " + library.get_error_string(status);
  return status == kNoMemory ? ExhaustedError(std::move(message))
                             : InternalError(std::move(message));
}

}  // namespace weft::kernels::cuda
