#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/data/sequence_range.h"

namespace weft::engine {

/// The sequences of an endless training order that no rank has trained on yet: what ranks have left
/// out so far, and all that follows. Their places, from 0, are in the order of their numbers.
class UnreadSequences {
 public:
  /// `bounds`: ascending numbers [first, end, first, end, ..., first], an odd number of them: the
  /// last range has no end.
  explicit UnreadSequences(std::vector<int64_t> bounds);

  const std::vector<int64_t>& bounds() const { return bounds_; }

  /// The numbers of those at places [first, first + count).
  std::vector<SequenceRange> At(int64_t first, int64_t count) const;

  /// Those at these ranges of places, ascending and disjoint, have been trained on.
  void Remove(std::span<const SequenceRange> places);

 private:
  std::vector<int64_t> bounds_;
  std::vector<int64_t> places_;  ///< Of the first of each range.
};

}  // namespace weft::engine
