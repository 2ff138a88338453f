#pragma once

#include <cstdint>
#include <vector>

#include "common/model/remat_memory.h"
#include "common/pipeline/schedule.h"

namespace weft {

/// Micro-batches in flight on pipeline ranks by the schedule, however the network is cut.
class InFlightActivations {
 public:
  explicit InFlightActivations(const PipelineSchedule& schedule);

  int64_t ranks() const { return static_cast<int64_t>(moments_.size()); }
  int64_t chunks() const { return chunks_; }
  /// Weight gradients are deferred.
  bool defers() const { return defers_; }

  /// The most micro-batches whose saved tensors of that stage the rank holds, including the one in
  /// progress.
  int64_t InFlight(int64_t rank, int64_t chunk) const;

  /// The first one of rank `rank` and the ranks before it such that Most() of none of them is less
  /// than of the one behind it, with the same passes and the same bytes besides.
  int64_t FallsFrom(int64_t rank) const { return falls_from_[static_cast<size_t>(rank)]; }

  /// Bytes that do not belong to a pass.
  struct NonPassBytes {
    int64_t output = 0;    ///< Of a message to the stage behind, or from the one before.
    int64_t gradient = 0;  ///< Of one the other way.
    int64_t batch = 0;     ///< Of a micro-batch, until its backward pass is over.
  };
  /// The most bytes that rank `rank` holds at a time, in a step and outside it, where a micro-batch
  /// takes `passes` of each chunk. One message of each kind is requested ahead, and a sent one
  /// stays until something has arrived that its receiver sent later.
  int64_t Most(int64_t rank, const std::vector<PassBytes>& passes,
               const NonPassBytes& beside) const;

 private:
  /// Steps of one kind, and what others hold meanwhile.
  struct Moments {
    bool forward = true;
    int32_t chunk = 0;
    /// Counts, in this order: micro-batches that are kept, by chunk; those whose gradients of
    /// weights wait, by chunk; outputs, gradients and batches. No other moment has as much of all.
    std::vector<int32_t> counts;
  };
  /// Whether at no moment `rank` holds more than the rank before holds at some moment.
  bool NoMoreThanBefore(int64_t rank) const;

  int64_t chunks_;
  bool defers_;
  std::vector<std::vector<Moments>> moments_;  ///< By rank.
  std::vector<int64_t> falls_from_;            ///< The same.
};

}  // namespace weft
