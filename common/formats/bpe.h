#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

/// Byte-pair merging: the table of merges and the algorithm (Sennrich et al. 2016), on token ids.
/// Immutable after building, so thread-safe.
class BpeMerges {
 public:
  /// Adds the next merge, ranked after those added before: `left` `right` become `merged`. False
  /// when the pair has one already.
  bool Add(int32_t left, int32_t right, int32_t merged);

  /// Merges the tokens of one piece, which are those from `first` on: the adjacent pair of lowest
  /// rank, of equal ones the leftmost, until no pair is left. O(n log n).
  void Apply(std::vector<int32_t>& tokens, size_t first) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    int32_t rank = 0;
    int32_t merged = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  /// The slot of a pair, or the empty one where it belongs.
  size_t Probe(uint64_t pair) const;
  const Slot* Find(int32_t left, int32_t right) const;
  void Grow();
  void ApplyShort(std::vector<int32_t>& out, size_t first) const;
  void ApplyLong(std::vector<int32_t>& out, size_t first) const;

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  int32_t count_ = 0;
};

}  // namespace weft
