#include "worker/engine/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/rng.h"
#include "worker/engine/data/permutation.h"

namespace weft::engine {
namespace {

std::vector<uint64_t> Starts(const std::vector<uint64_t>& lengths) {
  std::vector<uint64_t> starts = {0};
  for (uint64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

/// Best-fit decreasing by looking at every bin: the number of bins.
size_t BruteForceBins(const std::vector<uint64_t>& lengths, uint64_t capacity) {
  std::vector<uint64_t> pieces;
  for (uint64_t length : lengths) {
    for (; length > capacity; length -= capacity) pieces.push_back(capacity);
    if (length > 0) pieces.push_back(length);
  }
  std::sort(pieces.rbegin(), pieces.rend());
  std::vector<uint64_t> rooms;
  for (uint64_t piece : pieces) {
    auto best = rooms.end();
    for (auto it = rooms.begin(); it != rooms.end(); ++it) {
      if (*it >= piece && (best == rooms.end() || *it < *best)) best = it;
    }
    if (best == rooms.end()) best = rooms.insert(rooms.end(), capacity);
    *best -= piece;
  }
  return rooms.size();
}

TEST(PackBestFit, ShortenedDocumentsKeepTheirBeginning) {
  const PackedSequences packed = PackBestFit(Starts({10, 3, 4, 1}), 4, LongDocuments::kShorten);
  std::vector<TokenRun> runs = packed.segments;
  std::sort(runs.begin(), runs.end(),
            [](const TokenRun& a, const TokenRun& b) { return a.first < b.first; });
  EXPECT_EQ(runs, (std::vector<TokenRun>{{0, 4}, {10, 3}, {13, 4}, {17, 1}}));
  EXPECT_EQ(packed.size(), 3u);  // the two short ones share one
}

TEST(PackBestFit, PlacesEveryTokenOnceAndNeverTooManyInASequence) {
  PhiloxStream random({5, 0, 0});
  for (int64_t capacity : {1, 2, 7, 64, 100, 512}) {
    std::vector<uint64_t> lengths(400);
    for (uint64_t& length : lengths) {
      length = random.Below(random.Below(4) == 0 ? 3 * capacity : capacity) + 1;
    }
    const std::vector<uint64_t> starts = Starts(lengths);
    const PackedSequences packed = PackBestFit(starts, capacity);
    std::vector<int> seen(starts.back());
    for (size_t s = 0; s < packed.size(); ++s) {
      uint64_t used = 0;
      for (const TokenRun& segment : packed[s]) {
        used += segment.count;
        for (uint64_t i = 0; i < segment.count; ++i) ++seen[segment.first + i];
        auto document = std::prev(std::upper_bound(starts.begin(), starts.end(), segment.first));
        const uint64_t length = document[1] - document[0];
        EXPECT_LE(segment.first + segment.count, document[1]) << "crosses a document";
        EXPECT_TRUE(length > static_cast<uint64_t>(capacity) || segment.count == length);
      }
      EXPECT_LE(used, static_cast<uint64_t>(capacity));
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(seen.size()));
    EXPECT_EQ(packed.size(), BruteForceBins(lengths, static_cast<uint64_t>(capacity)));
    const uint64_t bound = (starts.back() + capacity - 1) / capacity;
    EXPECT_GE(packed.size(), bound);
  }
}

TEST(PackBestFit, DependsOnNothingButItsArgumentsAndDoesNotSortByLength) {
  std::vector<uint64_t> lengths;
  for (uint64_t i = 0; i < 300; ++i) lengths.push_back(1 + i * 7 % 97);
  const PackedSequences a = PackBestFit(Starts(lengths), 100);
  const PackedSequences b = PackBestFit(Starts(lengths), 100);
  EXPECT_EQ(a.segments, b.segments);
  EXPECT_EQ(a.starts, b.starts);
  int falls = 0;
  for (size_t s = 0; s + 1 < a.size(); ++s) falls += a[s][0].count > a[s + 1][0].count;
  EXPECT_GT(falls, static_cast<int>(a.size() / 4));
  EXPECT_LT(falls, static_cast<int>(a.size() * 3 / 4));
}

TEST(PackBestFit, HandlesNoDocumentsAndOneLongOne) {
  EXPECT_EQ(PackBestFit(std::vector<uint64_t>{0}, 8).size(), 0u);
  const PackedSequences packed = PackBestFit(std::vector<uint64_t>{0, 20}, 8);
  EXPECT_EQ(packed.size(), 3u);
  EXPECT_TRUE(std::find(packed.segments.begin(), packed.segments.end(), TokenRun{16, 4}) !=
              packed.segments.end());
}

TEST(Permutation, VisitsEveryIndexOnceAndChangesWithItsKey) {
  for (uint64_t size : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4096}) {
    std::vector<int> seen(size);
    uint64_t fixed = 0;
    uint64_t equal = 0;
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = Permute(i, size, {7, 0, 1});
      ASSERT_LT(image, size);
      ++seen[image];
      fixed += image == i;
      equal += image == Permute(i, size, {7, 1, 1});
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(size));
    // A random permutation has one fixed point on average, and agrees with another in one place.
    if (size >= 100) {
      EXPECT_LT(fixed, 12u);
      EXPECT_LT(equal, 12u);
    }
  }
}

}  // namespace
}  // namespace weft::engine
