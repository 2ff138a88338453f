#include "coordinator/planner/step_rates.h"

#include <algorithm>

#include "common/number.h"
#include "coordinator/planner/device_rates.h"
#include "coordinator/planner/processor_rates.h"

namespace weft::planner {
namespace {

// What one core can draw from memory however idle the others are.
constexpr double kBytesPerSecondPerCore = 16e9;
constexpr double kDefaultCopyBytesPerSecond = 10e9;
constexpr double kDefaultLoopbackBytesPerSecond = 1.5e9;
constexpr double kDefaultFileBytesPerSecond = 1e9;

}  // namespace

double StepRates::HostBytesPerSecond(const RankPlace& place) const {
  const double all = worker_.copy_bytes_per_second > 0 ? worker_.copy_bytes_per_second
                                                       : kDefaultCopyBytesPerSecond;
  return std::min(all / D(place.ranks_on_worker), kBytesPerSecondPerCore * D(place.threads));
}

double StepRates::FileBytesPerSecond(const RankPlace& place) const {
  const double all = worker_.disk_write_bytes_per_second > 0 ? worker_.disk_write_bytes_per_second
                                                             : kDefaultFileBytesPerSecond;
  return all / D(std::max<int64_t>(place.ranks_on_worker, 1));
}

double StepRates::LoopbackBytesPerSecond() const {
  return worker_.loopback_bytes_per_second > 0 ? worker_.loopback_bytes_per_second
                                               : kDefaultLoopbackBytesPerSecond;
}

double StepRates::BetweenWorkers(const RankPlace& place, const RankGroup& group,
                                 double bytes_per_second, double share) const {
  const double between_racks = share * worker_.between_racks_bytes_per_second;
  const double link = share * group.link.bytes_per_second;
  if (place.spans_racks && between_racks > 0) {
    bytes_per_second = std::min(bytes_per_second, between_racks);
  }
  return link > 0 ? std::min(bytes_per_second, link) : bytes_per_second;
}

double StepRates::NetworkLatencySeconds(const RankPlace& place, const RankGroup& group) const {
  const double machines = worker_.network_latency_seconds +
                          (place.spans_racks ? worker_.between_racks_latency_seconds : 0);
  return std::max(machines, group.link.latency_seconds);
}

std::unique_ptr<const StepRates> MakeStepRates(const WorkerProfile& worker, DType products,
                                               bool on_devices) {
  for (const DeviceSpec& device : worker.devices) {
    if (on_devices && device.unusable.empty()) {
      return std::make_unique<const DeviceRates>(worker, device, products);
    }
  }
  return std::make_unique<const ProcessorRates>(worker, products);
}

}  // namespace weft::planner
