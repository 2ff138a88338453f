#pragma once

#include <string>

#include "common/spec/cluster_spec.h"
#include "worker/daemon/machine.h"

namespace weft::daemon {

/// What this machine can do, measured: matrix products in fp32 and bf16 with one thread and with
/// all cores, memory copy, TCP over loopback, synced writes to `write_dir`. Takes about a second.
/// The result is kept in `cache_path` and taken from there while version, processor, cores and
/// instruction set stay the same, unless `again`. Worker id, host and memory limit are not set.
Result<WorkerProfile> MeasuredProfile(const Machine& machine, const std::string& cache_path,
                                      const std::string& write_dir, bool again);

}  // namespace weft::daemon
