#include "coordinator/planner/device_rates.h"

#include <algorithm>

#include "common/model/device_order.h"
#include "common/model/technique_products.h"
#include "common/number.h"

namespace weft::planner {
namespace {

constexpr double kDefaultPeerBytesPerSecond = 20e9;
// A device does nothing until the host, which has waited for how many rows the experts have, has
// launched something.
constexpr double kSecondsPerExpertWait = 20e-6;

}  // namespace

DeviceRates::DeviceRates(const WorkerProfile& worker, const DeviceSpec& device, DType products)
    : StepRates(worker, products), model_(device) {
  double slowest = 0;
  for (const DeviceLink& link : device.links) {
    if (link.bytes_per_second <= 0) continue;
    slowest = slowest > 0 ? std::min(slowest, link.bytes_per_second) : link.bytes_per_second;
  }
  link_bytes_per_second_ = slowest > 0 ? slowest : kDefaultPeerBytesPerSecond;
  // GPUs have a share of the network each and send past the processor.
  const double network = worker.network_bytes_per_second;
  network_share_ = 1 / D(UsableDevices(worker.devices));
  network_bytes_per_second_ =
      network > 0 ? network / D(UsableDevices(worker.devices)) : LoopbackBytesPerSecond();
}

double DeviceRates::GemmFlopsPerSecond(DType products, int64_t m, int64_t n, int64_t k,
                                       int64_t /*threads*/) const {
  const double seconds = model_.ProductSeconds(GemmRateName(products), D(m), D(n), D(k));
  return 2 * D(m) * D(n) * D(k) / seconds;
}

double DeviceRates::AttentionFlopsPerSecond(int64_t /*threads*/) const {
  return model_.AttentionFlopsPerSecond(GemmRateName(products_));
}

double DeviceRates::FormatProductSeconds(const ProductFormat& format, int64_t m, int64_t n,
                                         int64_t k) const {
  return model_.ProductSeconds(format.rate_name, D(m), D(n), D(k));
}

double DeviceRates::TechniqueFlopsPerSecond(std::string_view rate_name, GemmPass pass, int64_t m,
                                            int64_t n, int64_t k, int64_t /*threads*/) const {
  const std::string name = TechniqueRateName(rate_name, pass, products_);
  if (!model_.HasMeasured(name)) return 0;
  return 2 * D(m) * D(n) * D(k) / model_.ProductSeconds(name, D(m), D(n), D(k));
}

double DeviceRates::MemoryBytesPerSecond(const RankPlace& /*place*/) const {
  return model_.MemoryBytesPerSecond();
}

double DeviceRates::UpdateBytesPerSecond(const RankPlace& place, bool on_host) const {
  return on_host ? HostBytesPerSecond(place) : model_.MemoryBytesPerSecond();
}

double DeviceRates::LeastMemorySeconds(double bytes) const {
  return bytes / model_.MemoryBytesPerSecond();
}

// Matrices are copied where products read another type. For products in a format the device reads
// each number once more to find the scale, of what the host has made and uploaded, in the type of
// other products, twice, and writes it by rows and by columns. Conversions in the passes of ranks
// that gather matrices from the host count nothing.
OperandCopies DeviceRates::CopiesOf(const PrecisionRecipe& precision, double format_share,
                                    bool gathers, bool on_host) const {
  const double stored = D(ElementBytes(precision.matrices));
  const bool copied = precision.matrices != precision.products && !(on_host && gathers);
  const double copies = copied ? stored + D(ElementBytes(precision.products)) : 0;
  if (precision.block_products == nullptr) {
    return {.update = copies,
            .dequantized = OperandCopies::kCodeBytes + D(ElementBytes(precision.products))};
  }
  if (!on_host) return {.update = copies + format_share * stored};
  const double uploaded =
      D(2 * ElementBytes(precision.products) + 2 * precision.block_products->element_bytes);
  return {.update = copies, .uploaded = format_share * uploaded};
}

double DeviceRates::HostLinkBytesPerSecond(const RankPlace& /*place*/, int64_t /*wanted*/) const {
  return model_.HostLinkBytesPerSecond();
}

const OperationCounts& DeviceRates::operations() const {
  static constexpr OperationCounts kCounts = {.forward = 10,
                                              .backward = 18,
                                              .pass = 40,
                                              .forward_routing = 8,
                                              .backward_routing = 6,
                                              .forward_expert = 3,
                                              .backward_expert = 5};
  return kCounts;
}

OperationCosts DeviceRates::CostsOfOperations(const RankPlace& /*place*/) const {
  return {.launch_seconds = model_.stack().host_seconds,
          .expert_wait_seconds = kSecondsPerExpertWait};
}

double DeviceRates::LinkBytesPerSecond(bool within_worker) const {
  return within_worker ? link_bytes_per_second_ : network_bytes_per_second_;
}

double DeviceRates::NetworkBytesPerSecond(const RankPlace& place, const RankGroup& group) const {
  return BetweenWorkers(place, group, network_bytes_per_second_, network_share_);
}

double DeviceRates::GroupLatencySeconds(const RankPlace& place, const RankGroup& group) const {
  return group.within_worker() ? 0 : NetworkLatencySeconds(place, group);
}

Wire DeviceRates::PointToPoint(const RankPlace& place, const RankGroup& group) const {
  const double latency = model_.stack().latency_seconds;
  if (group.within_worker()) return {link_bytes_per_second_, latency};
  return {NetworkBytesPerSecond(place, group), latency + NetworkLatencySeconds(place, group)};
}

// An all-gather or a reduce-scatter takes half of what an all-reduce takes.
double DeviceRates::CollectiveSeconds(const RankPlace& place, const RankGroup& group,
                                      const CollectiveLoad& load) const {
  if (group.ranks == 1) return 0;
  const auto all_reduces = [&](double count, double bytes) {
    if (count == 0) return 0.0;
    return count * model_.AllReduceSeconds(group.ranks, group.on_worker,
                                           NetworkBytesPerSecond(place, group), bytes / count,
                                           GroupLatencySeconds(place, group));
  };
  return all_reduces(load.all_reduces, load.reduced_bytes) +
         all_reduces(load.gathers, load.gathered_bytes) / 2;
}

// Hosts send each other their parts, no faster than a worker does to itself.
double DeviceRates::HostGatherSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                                      double count) const {
  if (group.ranks == 1) return 0;
  const double others = D(group.ranks - 1), part = bytes / D(group.ranks);
  const double loopback = LoopbackBytesPerSecond();
  const double wire =
      group.within_worker() ? loopback : std::min(NetworkBytesPerSecond(place, group), loopback);
  const double message = worker_.calibration.message_seconds + GroupLatencySeconds(place, group);
  return part / model_.HostLinkBytesPerSecond() + others * part / wire + count * others * message;
}

double DeviceRates::AllToAllSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                                    double /*messages*/) const {
  return model_.AllToAllSeconds(group.ranks, group.on_worker, NetworkBytesPerSecond(place, group),
                                bytes, GroupLatencySeconds(place, group));
}

double DeviceRates::CountExchangeSeconds(const RankPlace& place, const RankGroup& group,
                                         double times, double bytes) const {
  return times * AllToAllSeconds(place, group, bytes, 0);
}

double DeviceRates::LinksOf(int64_t ranks) const {
  return D(ranks);
}

double DeviceRates::StagedSeconds(double seconds, double bytes) const {
  return seconds == 0 ? 0 : std::max(seconds, bytes / model_.HostLinkBytesPerSecond());
}

double DeviceRates::HiddenSeconds(const RankPlace& /*place*/, double seconds,
                                  double multiplying) const {
  return std::min(model_.stack().overlap * seconds, multiplying);
}

}  // namespace weft::planner
