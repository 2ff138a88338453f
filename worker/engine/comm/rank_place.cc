#include "worker/engine/comm/rank_place.h"

#include <array>
#include <map>
#include <vector>

#include "common/env.h"

namespace weft::engine {
namespace {

constexpr std::string_view kCpu = "CPU";

}  // namespace

Result<std::string> PlaceOf(const Device& device, const NcclLibrary* nccl) {
  if (device.type == DeviceType::kCpu) return std::string(kCpu);
  std::array<char, 32> bus = {};
  const int error = nccl->device_bus_id(bus.data(), static_cast<int>(bus.size()), device.index);
  if (error != 0) {
    return UnavailableError("asking for the bus of CUDA device " + std::to_string(device.index) +
                            ": CUDA error " + std::to_string(error));
  }
  // One for all containers of a machine.
  WEFT_ASSIGN_OR_RETURN(std::string machine,
                        ReadFile(Env::Posix(), "/proc/sys/kernel/random/boot_id", 64));
  while (!machine.empty() && machine.back() == '\n') machine.pop_back();
  return "GPU " + std::string(bus.data()) + " of machine " + machine;
}

Status CheckPlaces(Collective& host, const std::string& own) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, host.AllGather(own));
  std::map<std::string, size_t> taken;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string& place = all[rank];
    if ((place == kCpu) != (all[0] == kCpu)) {
      return InvalidError("rank 0 computes on " + all[0] + ", rank " + std::to_string(rank) +
                          " on " + place +
                          "; hint: the ranks of a job are all on CPUs or all on GPUs: set "
                          "resources.device");
    }
    if (place == kCpu) continue;
    const auto [other, first] = taken.emplace(place, rank);
    if (!first) {
      return InvalidError("ranks " + std::to_string(other->second) + " and " +
                          std::to_string(rank) + " are both on " + place +
                          ", and NCCL wants one rank a GPU; hint: lower resources.max_ranks, or "
                          "give plan.rank_devices different GPUs");
    }
  }
  return OkStatus();
}

}  // namespace weft::engine
