#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"

namespace weft::kernels::testing {

/// A CUDA device as a report of measurements names it.
struct DeviceDescription {
  std::string name;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int driver_version = 0;   ///< CUDA version that the driver offers: 13000 for 13.0.
  int runtime_version = 0;  ///< Of this program, likewise.
};

/// Times work on a CUDA stream by events. Before each timed run a buffer of several times the
/// second-level cache is written, so inputs come from memory, and the host has time to enqueue the
/// run before the device reaches it. Not thread-safe.
class DeviceTimer {
 public:
  /// kUnavailable without CUDA. `state` must outlive the timer.
  static Result<std::unique_ptr<DeviceTimer>> Create(cuda::StreamState& state);
  ~DeviceTimer();
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  const DeviceDescription& description() const;

  /// Seconds on the device of each of `repeats` runs of what `enqueue` puts on the stream.
  Result<std::vector<double>> Seconds(const std::function<Status()>& enqueue, int repeats);

  /// Seconds of copying `bytes` within the device's memory, `repeats` times.
  Result<std::vector<double>> CopySeconds(size_t bytes, int repeats);

 private:
  struct State;
  explicit DeviceTimer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace weft::kernels::testing
