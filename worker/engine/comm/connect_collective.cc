#include <memory>
#include <string>
#include <utility>

#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/gloo_collective.h"
#include "worker/engine/comm/local_collective.h"
#include "worker/engine/comm/nccl_collective.h"
#include "worker/engine/comm/nccl_library.h"
#include "worker/engine/comm/rank_place.h"

namespace weft::engine {

Result<std::unique_ptr<Collective>> ConnectCollective(const CollectiveOptions& options,
                                                      Store& store) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidError("rank " + std::to_string(options.rank) + " of " +
                        std::to_string(options.size) + " ranks is impossible");
  }
  if (options.host.empty()) return InvalidError("collectives need an address to listen on");
  if (options.size == 1) return NewLocalCollective(options.device, "world");
  const bool on_cpu = options.device.type == DeviceType::kCpu;
  const NcclLibrary* nccl = nullptr;
  // Before any rank waits for another.
  if (!on_cpu) {
    WEFT_ASSIGN_OR_RETURN(nccl, LoadNccl());
  }
  WEFT_ASSIGN_OR_RETURN(const std::string place, PlaceOf(options.device, nccl));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Collective> host, ConnectGloo(options, store));
  WEFT_RETURN_IF_ERROR(CheckPlaces(*host, place));
  if (on_cpu) return host;
  return ConnectNccl(*nccl, options, store, std::move(host));
}

}  // namespace weft::engine
