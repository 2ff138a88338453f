#include <memory>
#include <utility>

#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/gloo_collective.h"
#include "worker/engine/comm/local_collective.h"
#include "worker/engine/comm/nccl_collective.h"
#include "worker/engine/comm/nccl_library.h"

namespace weft::engine {

Result<std::unique_ptr<Collective>> ConnectCollective(const CollectiveOptions& options,
                                                      Store& store) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidError("rank " + std::to_string(options.rank) + " of " +
                        std::to_string(options.size) + " ranks is impossible");
  }
  if (options.host.empty()) return InvalidError("collectives need an address to listen on");
  if (options.size == 1) return NewLocalCollective(options.device, "world");
  if (options.device.type == DeviceType::kCpu) return ConnectGloo(options, store);
  // Before anybody waits for anybody.
  WEFT_ASSIGN_OR_RETURN(const NcclLibrary* nccl, LoadNccl());
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Collective> host, ConnectGloo(options, store));
  return ConnectNccl(*nccl, options, store, std::move(host));
}

}  // namespace weft::engine
