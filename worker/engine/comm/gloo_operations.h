#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/aligned_memory.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/gloo_link.h"

namespace weft::engine {

/// The operations of a group as messages. Each rank exchanges parts with each other one directly,
/// in pieces, so that a piece is on the wire while the one before is added up. A reduce-scatter and
/// an all-gather send (n-1)/n of the payload, the least there can be, an all-reduce is the two of
/// them piece by piece (Thakur et al. 2005, "Optimization of Collective Communication Operations in
/// MPICH", sections 4.1, 4.3), and a broadcast a scatter and an all-gather. Whoever reduces a part
/// has the values of all ranks at hand, and adds them in a tree (pairwise_reduce.h).
/// Throws Gloo's exceptions. One thread.
class GlooOperations {
 public:
  explicit GlooOperations(GlooLink& link) : link_(link), rank_(link.rank()), size_(link.size()) {}

  void Run(const CollectiveCall& call);
  std::vector<std::string> Gather(std::string_view bytes);
  void Broadcast(void* data, int64_t bytes, int root);
  void Barrier();

  /// Memory that this keeps from one reduction to the next. From any thread.
  int64_t held_bytes() const { return static_cast<int64_t>(staging_bytes_.load()); }

 private:
  /// The rank that comes `step` after this one, in a circle.
  int Peer(int step) const { return (rank_ + step) % size_; }

  void AllReduceAtOnce(const CollectiveCall& call);
  void ReduceParts(const CollectiveCall& call);
  void GatherParts(const CollectiveCall& call);
  void Exchange(const CollectiveCall& call);
  char* Staging(size_t bytes);

  GlooLink& link_;
  const int rank_;
  const int size_;
  std::atomic<size_t> staging_bytes_ = 0;
  kernels::cpu::AlignedMemory staging_;  ///< What peers send to be reduced.
};

}  // namespace weft::engine
