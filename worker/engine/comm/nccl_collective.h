#pragma once

#include <memory>

#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/nccl_library.h"

namespace weft::engine {

/// Joins the ranks of `host`, a group over the same ranks for bytes of the host, over NCCL on
/// `options.device`. The unique id goes through `store`. The communicator is non-blocking: whatever
/// it does is polled, and a watching thread aborts it when it reports an error or an operation that
/// has begun does not end within the timeout, or when `host` loses a peer: NCCL itself may not
/// notice one that dies on the same machine, and names none.
Result<std::unique_ptr<Collective>> ConnectNccl(const NcclLibrary& library,
                                                const CollectiveOptions& options, Store& store,
                                                std::unique_ptr<Collective> host);

}  // namespace weft::engine
