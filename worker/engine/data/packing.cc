#include "worker/engine/data/packing.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "common/check.h"
#include "common/rng.h"

namespace weft::engine {
namespace {

constexpr uint32_t kShuffleSite = SiteHash("data.packing");

/// The set of capacities that some open sequence has, with "smallest member not below".
class CapacitySet {
 public:
  explicit CapacitySet(size_t largest) : leaves_(std::bit_ceil(largest + 1)), full_(2 * leaves_) {}

  void Set(size_t capacity, bool member) {
    size_t node = leaves_ + capacity;
    full_[node] = member;
    for (node /= 2; node > 0; node /= 2) full_[node] = full_[2 * node] || full_[2 * node + 1];
  }

  /// SIZE_MAX when there is none.
  size_t AtLeast(size_t capacity) const {
    size_t node = leaves_ + capacity;
    if (full_[node]) return capacity;
    // Up to the first right sibling that holds a member, then down to its smallest.
    for (; node > 1; node /= 2) {
      if (node % 2 == 0 && full_[node + 1]) {
        ++node;
        while (node < leaves_) node = full_[2 * node] ? 2 * node : 2 * node + 1;
        return node - leaves_;
      }
    }
    return SIZE_MAX;
  }

 private:
  size_t leaves_;
  std::vector<bool> full_;
};

/// Pieces of at most `length` tokens, longest first, in the order of the data among equals.
std::vector<TokenRun> SortedPieces(std::span<const uint64_t> starts, size_t length,
                                   LongDocuments long_documents) {
  std::vector<TokenRun> pieces;
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    for (uint64_t at = starts[d]; at < starts[d + 1]; at += length) {
      pieces.push_back({at, static_cast<uint32_t>(std::min<uint64_t>(length, starts[d + 1] - at))});
      if (long_documents == LongDocuments::kShorten) break;
    }
  }
  std::vector<size_t> place(length + 2);
  for (const TokenRun& piece : pieces) ++place[length - piece.count + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  std::vector<TokenRun> sorted(pieces.size());
  for (const TokenRun& piece : pieces) sorted[place[length - piece.count]++] = piece;
  return sorted;
}

}  // namespace

PackedSequences PackBestFit(std::span<const uint64_t> document_starts, int64_t length,
                            LongDocuments long_documents) {
  WEFT_CHECK(length >= 1 && length <= 1 << 20, "sequence length out of range");
  const auto capacity = static_cast<size_t>(length);
  std::vector<std::vector<TokenRun>> bins;
  std::vector<std::vector<size_t>> open(capacity + 1);  // bins by what they still take
  CapacitySet capacities(capacity);
  for (const TokenRun& piece : SortedPieces(document_starts, capacity, long_documents)) {
    size_t room = capacities.AtLeast(piece.count);
    size_t bin = 0;
    if (room == SIZE_MAX) {
      room = capacity;
      bin = bins.size();
      bins.emplace_back();
    } else {
      bin = open[room].back();
      open[room].pop_back();
      if (open[room].empty()) capacities.Set(room, false);
    }
    bins[bin].push_back(piece);
    const size_t left = room - piece.count;
    if (left == 0) continue;
    open[left].push_back(bin);
    capacities.Set(left, true);
  }
  std::vector<size_t> order(bins.size());
  std::iota(order.begin(), order.end(), size_t{0});
  PhiloxStream random({0, 0, kShuffleSite});
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  PackedSequences packed;
  for (size_t bin : order) {
    packed.segments.insert(packed.segments.end(), bins[bin].begin(), bins[bin].end());
    packed.starts.push_back(packed.segments.size());
  }
  return packed;
}

}  // namespace weft::engine
