#pragma once

#include <memory>
#include <string>

#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// Copies, in order, what `rank` sends to itself in an exchange of tensors of the host.
void CopyToSelf(const CollectiveCall& call, int rank);

/// A group of one: no thread, no connection, and every operation is done when it is enqueued.
/// `member`: which of all ranks it is.
std::unique_ptr<Collective> NewLocalCollective(Device device, std::string name, int member = 0);

}  // namespace weft::engine
