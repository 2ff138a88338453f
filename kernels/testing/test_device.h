#pragma once

#include "kernels/stream.h"

namespace weft::kernels::testing {

/// Where test tensors live that are made meanwhile, in this thread; the CPU when there is none.
class ScopedTestDevice {
 public:
  /// `exact`: device memory ends with the last row, so that tools see an access behind it; tensors
  /// have no guard there then.
  ScopedTestDevice(Device device, bool exact);
  ~ScopedTestDevice();
  ScopedTestDevice(const ScopedTestDevice&) = delete;
  ScopedTestDevice& operator=(const ScopedTestDevice&) = delete;

  /// The innermost one, or nullptr.
  static const ScopedTestDevice* Current();

  Device device() const { return device_; }
  bool exact() const { return exact_; }

 private:
  const ScopedTestDevice* outer_;
  Device device_;
  bool exact_;
};

}  // namespace weft::kernels::testing
