#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <unordered_map>
#include <vector>

#include "common/model/optimal_chain.h"

namespace weft {

/// The link to the host. Each direction carries one transfer at a time, overlapped with
/// computation.
struct ChainLink {
  double seconds_per_byte = 0;  ///< Infinite: there is none.
  int64_t ticks = 12;           ///< Steps of time in which the longest transfer is counted.
};

/// The schedules of least time for a chain whose stages may also send what they keep to the host
/// and fetch it again, by the bytes that they may take on the device (the problem of Beaumont,
/// Eyraud-Dubois and Shilova 2021, "Efficient Combination of Rematerialization and Offloading for
/// Training DNNs"). Time is that of computing and of waits for the link (transfer_waits.h).
///
/// These are persistent schedules (optimal_chain.h) without transfers in a replay and with one
/// transfer each way in flight: what a step saves has left the device, at the latest, at the end of
/// the forward pass of the next step that sends, and begins to come back, at the earliest, with
/// that step's backward pass. Where all times are whole ticks the result is the fastest of these;
/// else a transfer counts as up to two ticks longer or one shorter than it is, and TransferWaits
/// computes what the schedule costs. Schedules with several transfers queued may be faster, on the
/// chains of offloading_chain_test.cc by a twentieth at most.
///
/// Dynamic programming over stages, memory and what is left of the transfer each way; replays are
/// parts of an OptimalChain.
class OffloadingChain {
 public:
  /// Takes what OptimalChain takes. The last stage keeps what it needs on the device.
  OffloadingChain(std::vector<ChainStage> stages, int64_t bytes, int64_t slots,
                  const ChainLink& link, std::stop_token stop = {});

  /// Seconds of a forward and backward pass within `bytes` on the device; infinite when they are
  /// too few.
  double Seconds(int64_t bytes);

  /// The schedule: all of stages 0 to n - 1 are in a step. None when the bytes are too few.
  std::optional<RematPlan> Schedule(int64_t bytes);

 private:
  /// The transfers that overlap with the stages to come.
  struct Transfers {
    int64_t slots = 0;  ///< Of the step that sent last, where one of these is not 0:
    int64_t down = 0;   ///< ticks that are left until it is gone,
    int64_t up = 0;     ///< ticks that are left until it is back, counted against time.
    int64_t HeldForward() const { return down > 0 ? slots : 0; }
    int64_t HeldBackward() const { return up > 0 ? slots : 0; }
  };
  struct State {
    int64_t stage = 0;
    int64_t slots = 0;  ///< That steps below do not keep.
    Transfers transfers;
  };
  struct Choice {
    double seconds = 0;
    int32_t mode = -1;   ///< Of the stage, or
    int32_t count = -1;  ///< how many stages keep the input of the first.
    bool sends = false;
    State next = {};
  };

  uint64_t KeyOf(const State& state) const;
  const Choice& At(const State& state);
  Choice Best(const State& state);
  /// Offers what may follow a step whose choice is filled in up to its own seconds.
  void Follow(const State& state, Choice step, int64_t bytes, int64_t forward, int64_t backward,
              Choice& best);
  int64_t Ticks(double seconds) const;
  int64_t TicksOfTransfer(int64_t bytes) const;

  const std::vector<ChainStage> stages_;
  const OptimalChain replays_;
  const ChainLink link_;
  const std::stop_token stop_;
  double tick_ = 1;               ///< Seconds.
  std::vector<double> forward_;   ///< Of all stages before each.
  std::vector<double> backward_;  ///< Likewise.
  std::unordered_map<uint64_t, Choice> table_;
};

}  // namespace weft
