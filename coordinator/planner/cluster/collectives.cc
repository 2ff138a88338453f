#include "coordinator/planner/cluster/collectives.h"

#include <algorithm>
#include <cmath>

namespace weft::planner {
namespace {

double D(int64_t value) {
  return static_cast<double>(value);
}

/// Latencies of an all-reduce, in those of one between two ranks: the steps of its ring, or, where
/// they are fewer, up and down two trees.
double Hops(int64_t ranks) {
  constexpr int64_t kRing = 16;  // up to here its steps are fewer
  return ranks <= kRing ? D(ranks - 1) : std::min(D(ranks - 1), 4 * std::log2(D(ranks)));
}

}  // namespace

double AllReduceSeconds(const AcceleratorSpec& device, const SoftwareStack& stack, int64_t ranks,
                        int64_t nodes, double bytes) {
  if (ranks <= 1) return 0;
  const double inside = device.link_bytes_per_second * stack.link_share;
  const double share = D(ranks - 1) / D(ranks);
  if (nodes <= 1) return stack.latency_seconds * Hops(ranks) + 2 * share * bytes / inside;
  // As many rings as ranks on a machine, each of which leaves it once, by another's network card.
  const double between =
      device.network_bytes_per_second * stack.network_share * D(ranks) / D(nodes);
  const double latency = stack.latency_seconds * std::max(2.0, Hops(ranks));
  return latency + 2 * share * bytes / std::min(inside, between);
}

AllToAllBytes AllToAllTraffic(int64_t ranks, int64_t on_machine, double bytes) {
  const double each = bytes / D(ranks);
  const int64_t near = std::min(ranks, on_machine);
  return {each * D(near - 1), each * D(ranks - near)};
}

double AllToAllSeconds(const AcceleratorSpec& device, const SoftwareStack& stack, int64_t ranks,
                       int64_t on_machine, double bytes) {
  const AllToAllBytes traffic = AllToAllTraffic(ranks, on_machine, bytes);
  const auto seconds = [&](double sent, double rate) {
    return sent > 0 ? stack.latency_seconds + sent / rate : 0.0;
  };
  return std::max(seconds(traffic.inside, device.link_bytes_per_second * stack.link_share),
                  seconds(traffic.between, device.network_bytes_per_second * stack.network_share));
}

}  // namespace weft::planner
