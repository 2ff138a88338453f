#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <vector>

#include "common/model/optimal_chain.h"

namespace weft {

/// The persistent schedules (optimal_chain.h) of least time for a chain with several passes in
/// flight, as on a rank of a pipeline. While one pass computes, each of the others holds what its
/// steps save between their forward and their backward pass. Only one of them replays at a time.
///
/// Let a schedule save K bytes and peak at P in a single pass; n passes then take (n - 1) K + P.
/// For each room P - K in addition to the saved bytes, dynamic programming over stages and what
/// they save finds the fastest schedule; replays are parts of an OptimalChain.
class InFlightChain {
 public:
  /// Allows at most `bytes` for one pass, in `slots` equal steps, to which sizes are rounded up;
  /// takes O(n^2 slots^2) for n stages, in addition to an OptimalChain. Stops as that does.
  InFlightChain(std::vector<ChainStage> stages, int64_t bytes, int64_t slots,
                const std::stop_token& stop = {});

  /// Seconds of a forward and backward pass with `passes` in flight within `bytes`; infinite when
  /// these are too few.
  double Seconds(int64_t bytes, int64_t passes) const;

  /// The schedule: all of stages 0 to n - 1 are in a step. None when the bytes are too few.
  std::optional<RematPlan> Schedule(int64_t bytes, int64_t passes) const;

 private:
  struct Choice {
    double seconds = 0;
    int32_t mode = -1;   ///< Of the stage, or
    int32_t count = -1;  ///< how many stages keep the input of the first.
  };
  /// Steps of memory of a schedule.
  struct Room {
    int64_t kept = 0;    ///< That stages may still keep.
    int64_t beside = 0;  ///< That replays and passing results have besides these.
  };
  size_t IndexOf(int64_t stage, const Room& room) const;
  Choice Best(int64_t stage, const Room& room) const;
  /// The room with which the whole chain is fastest.
  Room FastestRoom(int64_t bytes, int64_t passes) const;

  std::vector<ChainStage> stages_;
  OptimalChain replays_;
  int64_t unit_;
  int64_t slots_;
  std::vector<Choice> table_;  ///< By stage, `kept` and `beside`.
};

}  // namespace weft
