#pragma once

#include <string>

#include "common/status.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/nccl_library.h"

namespace weft::engine {

/// What a rank computes on, as its peers learn: "CPU", or a GPU by its bus and machine. `nccl`:
/// of a rank on a CUDA device.
Result<std::string> PlaceOf(const Device& device, const NcclLibrary* nccl);

/// kInvalid, on all ranks alike, when not all of `host` compute on CPUs, or each on a GPU of its
/// own.
Status CheckPlaces(Collective& host, const std::string& own);

}  // namespace weft::engine
