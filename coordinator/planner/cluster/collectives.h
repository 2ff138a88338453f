#pragma once

#include <cstdint>

#include "coordinator/planner/cluster/accelerator.h"
#include "coordinator/planner/cluster/software_stack.h"

namespace weft::planner {

/// What links reach when ranks use them together.
struct CollectiveLinks {
  double inside = 0;   ///< Bytes a second of a rank to others of its machine,
  double between = 0;  ///< and to other machines.
  double latency_seconds = 0;
};
CollectiveLinks LinksOf(const AcceleratorSpec& device, const SoftwareStack& stack);

/// Seconds of an all-reduce of `bytes` over `ranks` that stand on `nodes` machines, a rank's share
/// of each link; all-gather and reduce-scatter take half.
double AllReduceSeconds(const CollectiveLinks& links, int64_t ranks, int64_t nodes, double bytes);
inline double AllReduceSeconds(const AcceleratorSpec& device, const SoftwareStack& stack,
                               int64_t ranks, int64_t nodes, double bytes) {
  return AllReduceSeconds(LinksOf(device, stack), ranks, nodes, bytes);
}

/// Bytes that a rank sends to others of its machine and of other machines.
struct AllToAllBytes {
  double inside = 0;
  double between = 0;
};

/// Of `bytes` that a rank has for all of `ranks`, itself among them, the same for each; so many of
/// them are on its machine.
AllToAllBytes AllToAllTraffic(int64_t ranks, int64_t on_machine, double bytes);

/// Seconds of that: both kinds of links at once, and a latency for each, because no message waits
/// for another.
double AllToAllSeconds(const CollectiveLinks& links, int64_t ranks, int64_t on_machine,
                       double bytes);
inline double AllToAllSeconds(const AcceleratorSpec& device, const SoftwareStack& stack,
                              int64_t ranks, int64_t on_machine, double bytes) {
  return AllToAllSeconds(LinksOf(device, stack), ranks, on_machine, bytes);
}

}  // namespace weft::planner
