#pragma once

#include <cstdint>

#include "common/model/memory_model.h"

namespace weft {

/// Bytes that the data- and context-parallel ranks of a job exchange in one optimizer step, as
/// payloads of their collectives: of n bytes a rank of g sends n (g-1)/g for a reduce-scatter or an
/// all-gather, and twice that for an all-reduce. Scalars, and maxima of magnitudes, are not
/// counted, nor are the numbers of rows that go to experts. With train.local_steps workers exchange
/// `all_reduced` in an outer step and nothing in between. The context-parallel ranks of a worker
/// sum as much with each other in every step. In an outer step each has a part of what goes to
/// other workers, and they gather all.
struct RankTraffic {
  int64_t all_reduced = 0;        ///< Of all these ranks.
  int64_t reduce_scattered = 0;   ///< Of the shard group (MemoryInputs::ShardGroupSize) ...
  int64_t gathered = 0;           ///< ... as this.
  int64_t between_groups = 0;     ///< All-reduced between ranks of groups that have the same parts.
  int64_t context_sent = 0;       ///< By a rank to its context-parallel ranks, for attention.
  int64_t experts_reduced = 0;    ///< All-reduced between ranks that have the same experts ...
  int64_t experts_scattered = 0;  ///< ... and, where they share, as reduce_scattered ...
  int64_t experts_gathered = 0;   ///< ... and gathered, which do not have them.
  /// Rows of tokens that a rank sends to experts, and receives from them, without a capacity,
  /// including those of its own experts. With an even spread over g ranks it sends (g-1)/g of them.
  int64_t exchanged = 0;
};

RankTraffic TrafficOfStep(const MemoryInputs& inputs);

}  // namespace weft
