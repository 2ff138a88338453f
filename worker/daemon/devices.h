#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/status.h"
#include "worker/daemon/nvml.h"

namespace weft::daemon {

/// Which of a machine's GPUs its worker offers: "all", "none", or indices and UUIDs with commas
/// between. Both must name a GPU.
struct DeviceChoice {
  std::string offered = "all";  ///< By the user: a name that fits no GPU is an error.
  std::string visible = "all";  ///< By CUDA_VISIBLE_DEVICES, whose other names fit nothing.
};

/// What CUDA_VISIBLE_DEVICES calls a GPU, with CUDA_DEVICE_ORDER=PCI_BUS_ID.
std::string CudaName(const DeviceSpec& device);

/// Measures one of `devices`, which are all that will be used: only rates are set in the result,
/// and links, in which `index` is a position in `devices`. kUnavailable when programs of this build
/// cannot compute there.
using MeasureDevice =
    std::function<Result<DeviceSpec>(const std::vector<DeviceSpec>& devices, size_t which)>;

/// All GPUs of this machine with what is known of them. Those on which ranks cannot or must not run
/// have a reason in `unusable`. Measurements are kept in `cache_path` and taken from there while
/// version, UUID and driver stay the same, unless `again`. kInvalid when `choice.offered` names no
/// GPU of this machine.
Result<std::vector<DeviceSpec>> FindDevices(const Nvml& nvml, const DeviceChoice& choice,
                                            const MeasureDevice& measure,
                                            const std::string& cache_path, bool again);

}  // namespace weft::daemon
