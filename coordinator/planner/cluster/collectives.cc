#include "coordinator/planner/cluster/collectives.h"

#include <algorithm>
#include <cmath>

#include "common/number.h"

namespace weft::planner {
namespace {

/// Latencies of an all-reduce, in those of one between two ranks: the steps of its ring, or, where
/// they are fewer, up and down two trees.
double Hops(int64_t ranks) {
  constexpr int64_t kRing = 16;  // up to here its steps are fewer
  return ranks <= kRing ? D(ranks - 1) : std::min(D(ranks - 1), 4 * std::log2(D(ranks)));
}

}  // namespace

CollectiveLinks LinksOf(const AcceleratorSpec& device, const SoftwareStack& stack) {
  return {device.link_bytes_per_second * stack.link_share,
          device.network_bytes_per_second * stack.network_share, stack.latency_seconds};
}

double AllReduceSeconds(const CollectiveLinks& links, int64_t ranks, double on_machine,
                        double bytes) {
  if (ranks <= 1) return 0;
  const double share = D(ranks - 1) / D(ranks);
  if (on_machine >= D(ranks))
    return links.latency_seconds * Hops(ranks) + 2 * share * bytes / links.inside;
  // As many rings as ranks on a machine; each leaves it once, by another's network card.
  const double between = links.between * on_machine;
  const double latency = links.latency_seconds * std::max(2.0, Hops(ranks));
  return latency + 2 * share * bytes / std::min(links.inside, between);
}

double AllReduceSeconds(const AcceleratorSpec& device, const SoftwareStack& stack, int64_t ranks,
                        int64_t nodes, double bytes) {
  return AllReduceSeconds(LinksOf(device, stack), ranks, D(ranks) / D(nodes), bytes);
}

AllToAllBytes AllToAllTraffic(int64_t ranks, int64_t on_machine, double bytes) {
  const double each = bytes / D(ranks);
  const int64_t near = std::min(ranks, on_machine);
  return {each * D(near - 1), each * D(ranks - near)};
}

AllToAllBytes DispatchTraffic(int64_t ranks, int64_t on_machine, double bytes, double to_rank,
                              double to_machine) {
  const double near = D(std::min(ranks, on_machine));
  const double machines = D(ranks) / near;
  // A rank passes on what it gets of each machine, its own tokens among them, to its neighbours.
  return {bytes * to_rank * machines * (near - 1), bytes * to_machine * (machines - 1)};
}

double AllToAllSeconds(const CollectiveLinks& links, const AllToAllBytes& traffic) {
  const auto seconds = [&](double sent, double rate) {
    return sent > 0 ? links.latency_seconds + sent / rate : 0.0;
  };
  return std::max(seconds(traffic.inside, links.inside), seconds(traffic.between, links.between));
}

double AllToAllSeconds(const CollectiveLinks& links, int64_t ranks, int64_t on_machine,
                       double bytes) {
  return AllToAllSeconds(links, AllToAllTraffic(ranks, on_machine, bytes));
}

}  // namespace weft::planner
