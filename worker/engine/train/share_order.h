#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::engine {

/// Which rank takes which of the equal shares of a round: first each rank one, then always the one
/// that would be done with the next one first, at the speeds that are expected. So the shares that
/// have been taken when the round ends are successive ones, except for what speeds have changed.
/// The same on all ranks.
class ShareOrder {
 public:
  /// `speeds` of the ranks, in shares per second; positive.
  explicit ShareOrder(std::vector<double> speeds)
      : speeds_(std::move(speeds)), taken_(speeds_.size()) {}

  /// The rank that takes the next share.
  int64_t Next() {
    size_t next = 0;
    if (given_ < speeds_.size()) {
      next = given_;
    } else {
      for (size_t rank = 1; rank < speeds_.size(); ++rank) {
        if (DoneWithNext(rank) < DoneWithNext(next)) next = rank;
      }
    }
    ++given_;
    ++taken_[next];
    return static_cast<int64_t>(next);
  }

  /// Shares that a rank has taken.
  int64_t TakenBy(int64_t rank) const { return taken_[static_cast<size_t>(rank)]; }

 private:
  /// Seconds from the beginning of the round.
  double DoneWithNext(size_t rank) const {
    return static_cast<double>(taken_[rank] + 1) / speeds_[rank];
  }

  std::vector<double> speeds_;
  std::vector<int64_t> taken_;
  size_t given_ = 0;
};

}  // namespace weft::engine
