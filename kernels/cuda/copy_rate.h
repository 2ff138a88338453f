#pragma once

#include <cstddef>

#include "common/status.h"

namespace weft::kernels::cuda {

/// What copies of a device reach, in bytes per second.
struct CopyRates {
  double within = 0;    ///< From and to its own memory: read plus write.
  double upload = 0;    ///< From pinned memory of the machine.
  double download = 0;  ///< To pinned memory of the machine.
};

/// Measures with copies of `bytes`. kUnavailable without such a device or a CUDA back end.
Result<CopyRates> MeasureCopies(int device, size_t bytes);

/// The same of copies from `device` to `peer`: directly where one reaches the other's memory, else
/// through the machine's.
Result<double> MeasurePeerCopy(int device, int peer, size_t bytes);

}  // namespace weft::kernels::cuda
