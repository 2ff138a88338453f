#pragma once

#include <string>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/status.h"

namespace weft::daemon {

/// Rates of matrix products on CUDA device `device`, by shape and precision: fp32, bf16, fp16 and
/// the formats that it multiplies. kUnavailable without a CUDA back end.
Result<std::vector<GemmRate>> MeasureProducts(int device);

/// Measures CUDA device `device` of those that this process sees: MeasureProducts, copies within
/// its memory, to and from the machine's and to its peers. Only rates and links are set in the
/// result. Leaves a CUDA context behind, so a daemon has it done by a process of its own.
/// kUnavailable without a CUDA back end.
Result<DeviceSpec> MeasureRates(int device);

/// Runs `program --measure-device WHICH` so that it sees exactly `devices`, in this order, and
/// reads what MeasureRates gave there from its output. kUnavailable when it fails, with its last
/// words, or takes longer than a minute.
Result<DeviceSpec> MeasureInProcess(const std::string& program,
                                    const std::vector<DeviceSpec>& devices, size_t which);

}  // namespace weft::daemon
