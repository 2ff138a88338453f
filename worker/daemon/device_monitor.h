#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "worker/daemon/nvml.h"

namespace weft::daemon {

/// Something that happened on a GPU.
struct DeviceEvent {
  int index = 0;
  int64_t xid = 0;      ///< 0: another kind of event.
  std::string text;     ///< What, for people.
  bool broken = false;  ///< No rank must run there any more.
};

/// Watches GPUs: samples them again and again on one thread, and waits for XIDs on another. A GPU
/// that does not answer any more, has new uncorrected memory errors or an XID that speaks against
/// it is broken, which is reported once. A driver that has no events, or fails, ends nothing.
class DeviceMonitor {
 public:
  /// Called on the monitor's own threads.
  struct Listener {
    std::function<void(int index, const DeviceSample&)> on_sample;
    std::function<void(const DeviceEvent&)> on_event;
  };

  /// Samples at once, then at every `interval`. `nvml` outlives this.
  DeviceMonitor(const Nvml& nvml, std::vector<int> indices, std::chrono::milliseconds interval,
                Listener listener);
  /// Ends both threads; no call comes after it.
  ~DeviceMonitor();
  DeviceMonitor(const DeviceMonitor&) = delete;
  DeviceMonitor& operator=(const DeviceMonitor&) = delete;

 private:
  void SampleAll();
  void WaitForXids();
  /// False when this is ending.
  bool Rest(std::chrono::milliseconds time);
  bool Ending();
  void ReportEvent(const DeviceEvent& event);

  const Nvml& nvml_;
  const std::vector<int> indices_;
  const std::chrono::milliseconds interval_;
  const Listener listener_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::set<int> reported_broken_;
  std::thread sampler_;
  std::thread waiter_;
};

}  // namespace weft::daemon
