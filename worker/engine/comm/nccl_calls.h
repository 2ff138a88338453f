#pragma once

#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/nccl_library.h"

namespace weft::engine {

/// Enqueues `call` on `stream` of a communicator; a call without elements enqueues nothing. Returns
/// what NCCL returns, which may be NcclLibrary::kInProgress.
int EnqueueCall(const NcclLibrary& library, NcclLibrary::Comm comm, NcclLibrary::Stream stream,
                const CollectiveCall& call);

}  // namespace weft::engine
