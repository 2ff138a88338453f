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

/// Seconds of an all-reduce of `bytes` over `ranks`, at least `on_machine` of them on each machine
/// that has any, each with its share of the links; all-gather and reduce-scatter take half.
double AllReduceSeconds(const CollectiveLinks& links, int64_t ranks, double on_machine,
                        double bytes);
/// The same over `ranks` on `nodes` machines, as many on each.
double AllReduceSeconds(const AcceleratorSpec& device, const SoftwareStack& stack, int64_t ranks,
                        int64_t nodes, double bytes);

/// Bytes that a rank sends to others of its machine and of other machines.
struct AllToAllBytes {
  double inside = 0;
  double between = 0;
};

/// Splits `bytes` that a rank has for all of `ranks`, itself among them, the same for each;
/// `on_machine` of them are on its machine.
AllToAllBytes AllToAllTraffic(int64_t ranks, int64_t on_machine, double bytes);

/// Where only some of what a rank has goes to each of `ranks`: a share `to_rank` of `bytes`, once
/// to each rank and once to each machine, a share `to_machine` of them, whose ranks pass it on.
AllToAllBytes DispatchTraffic(int64_t ranks, int64_t on_machine, double bytes, double to_rank,
                              double to_machine);

/// Seconds of either: both kinds of links at once, and a latency for each, because no message waits
/// for another.
double AllToAllSeconds(const CollectiveLinks& links, const AllToAllBytes& traffic);
double AllToAllSeconds(const CollectiveLinks& links, int64_t ranks, int64_t on_machine,
                       double bytes);

}  // namespace weft::planner
