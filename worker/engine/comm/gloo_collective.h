#pragma once

#include <memory>

#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// Joins several ranks over Gloo; tensors are of the host. See ConnectCollective.
Result<std::unique_ptr<Collective>> ConnectGloo(const CollectiveOptions& options, Store& store);

}  // namespace weft::engine
