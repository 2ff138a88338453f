#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <vector>

#include "common/model/remat_schedule.h"

namespace weft {

/// A stage of a chain; each stage reads the result of the previous one.
struct ChainStage {
  /// How the stage runs so that its backward pass can follow: what it saves and recomputes.
  struct Mode {
    RematStep::Kind kind = RematStep::Kind::kKeep;
    int64_t saved_bytes = 0;       ///< All it keeps until then, its result included, its input not.
    int64_t passing_bytes = 0;     ///< In addition, at most, while it runs forward or backward.
    double recompute_seconds = 0;  ///< What its backward pass computes again.

    bool operator==(const Mode&) const = default;
  };
  double forward_seconds = 0;
  double backward_seconds = 0;
  int64_t result_bytes = 0;
  int64_t passing_bytes = 0;  ///< In addition to its input, while it runs and saves nothing.
  std::vector<Mode> modes;    ///< One at least.

  bool operator==(const ChainStage&) const = default;
};

/// The persistent schedules of least time for a chain, by the bytes that they may take: each result
/// that is stored stays until it is used for the last time. Dynamic programming over the parts of
/// the chain (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019, arXiv 1911.13214): a part
/// begins with a stage that saves what its backward pass needs (F_all), or with stages that save
/// only the input of the first (F_ck, F_none) and are such a part themselves later.
class OptimalChain {
 public:
  /// Allows at most `bytes`, in `slots` equal steps, to which sizes are rounded up. O(n^3 slots)
  /// for n stages that all differ; parts of one run of equal stages are found once for each length,
  /// so that it is O(n^2 slots) for a few runs. The chain's own input is not counted. After a
  /// request to stop nothing more is looked for, and what was not found counts as impossible.
  OptimalChain(std::vector<ChainStage> stages, int64_t bytes, int64_t slots,
               const std::stop_token& stop = {});

  /// Seconds of a forward and backward pass within `bytes`; infinite when they are too few.
  double Seconds(int64_t bytes) const;

  /// The schedule: all of stages 0 to n - 1 are in a step. None when the bytes are too few.
  std::optional<RematPlan> Schedule(int64_t bytes) const;

  /// Steps of memory that `bytes` take, and those that this many have whole.
  int64_t Slots(int64_t bytes) const { return (bytes + unit_ - 1) / unit_; }
  int64_t SlotsWithin(int64_t bytes) const;

  /// The same as Seconds and Schedule for stages [first, last] within this many steps of memory.
  double PartSeconds(int64_t first, int64_t last, int64_t slots) const {
    return seconds_[IndexOf(first, last, slots)];
  }
  RematPlan Part(int64_t first, int64_t last, int64_t slots) const;

 private:
  struct Choice {
    int32_t mode = -1;   ///< Of the first stage, or
    int32_t count = -1;  ///< how many stages keep the input of the first.
  };
  /// Gives parts with equal stages the same row of the table.
  void NumberParts();
  int32_t& RowOf(int64_t first, int64_t last) {
    return rows_[static_cast<size_t>(first * std::ssize(stages_) + last)];
  }
  size_t IndexOf(int64_t first, int64_t last, int64_t slots) const {
    const int64_t row = rows_[static_cast<size_t>(first * std::ssize(stages_) + last)];
    return static_cast<size_t>(row * (slots_ + 1) + slots);
  }
  /// Fills in the row of stages [first, last]; those of shorter parts are there.
  void Find(int64_t first, int64_t last);
  /// Takes `choice` for those numbers of slots from `least` on where it is faster: `fixed` seconds,
  /// plus those of `rest` with `taken` slots fewer, and of `replay`. Null: none.
  void Offer(Choice choice, size_t row, int64_t least, double fixed, const double* rest,
             int64_t taken, const double* replay);

  std::vector<ChainStage> stages_;
  int64_t unit_;
  int64_t slots_;
  std::vector<int32_t> rows_;  ///< By first and last stage.
  /// Both are indexed by row and slots.
  std::vector<double> seconds_;
  std::vector<Choice> choices_;
};

}  // namespace weft
