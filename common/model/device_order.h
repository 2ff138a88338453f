#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/cluster_spec.h"

namespace weft {

/// GPUs on which a rank of `bytes` can run: usable, with as much memory on offer.
int64_t UsableDevices(const std::vector<DeviceSpec>& devices, int64_t bytes = 0);

/// The indices of `count` of them for ranks that follow one another, so that the ranks are near:
/// from each GPU a chain is built by taking the one that is nearest to all taken before (NVLink,
/// then a PCIe switch, ... , then another NUMA node), and the tightest chain is taken; equals by
/// index. Fewer when there are not as many.
std::vector<int64_t> NearestDevices(const std::vector<DeviceSpec>& devices, int64_t count,
                                    int64_t bytes = 0);

}  // namespace weft
