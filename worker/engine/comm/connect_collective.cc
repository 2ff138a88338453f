#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/gloo_collective.h"
#include "worker/engine/comm/local_collective.h"

namespace weft::engine {

Result<std::unique_ptr<Collective>> ConnectCollective(const CollectiveOptions& options,
                                                      Store& store) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidError("rank " + std::to_string(options.rank) + " of " +
                        std::to_string(options.size) + " ranks is impossible");
  }
  if (options.host.empty()) return InvalidError("collectives need an address to listen on");
  if (options.size == 1) return NewLocalCollective(options.device, "world");
  if (options.device.type != DeviceType::kCpu) {
    return UnavailableError("no collectives between CUDA devices in this build");
  }
  return ConnectGloo(options, store);
}

}  // namespace weft::engine
