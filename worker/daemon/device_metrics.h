#pragma once

#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <string>

#include "common/spec/cluster_spec.h"
#include "worker/daemon/device_monitor.h"
#include "worker/daemon/nvml.h"

namespace weft::daemon {

/// The metrics of this machine's GPUs. Their label `device` is the index, as in
/// CUDA_VISIBLE_DEVICES with CUDA_DEVICE_ORDER=PCI_BUS_ID. Not thread-safe.
class DeviceMetrics {
 public:
  explicit DeviceMetrics(prometheus::Registry& registry);
  ~DeviceMetrics();

  /// A GPU that will be reported. Once for each.
  void Add(const DeviceSpec& device);

  /// What the driver does not report makes no series. Of a lost GPU the last values are taken away.
  void Set(int index, const DeviceSample& sample);

  /// Counts an XID, and remembers that the GPU broke.
  void Count(const DeviceEvent& event);

 private:
  struct Families;
  struct Device;
  std::unique_ptr<Families> families_;
  std::map<int, std::unique_ptr<Device>> devices_;
};

}  // namespace weft::daemon
