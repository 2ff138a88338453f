#include "worker/engine/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/rng.h"

namespace weft::engine {
namespace {

std::vector<uint32_t> RandomLengths(size_t count) {
  std::vector<uint32_t> lengths;
  PhiloxStream random({9, 0, 0});
  for (size_t i = 0; i < count; ++i) {
    lengths.push_back(static_cast<uint32_t>(1 + random.Below(500)));
  }
  return lengths;
}

TEST(SequenceOrder, DrawsEverySequenceOnceInEachEpoch) {
  for (uint64_t size : {uint64_t{1}, uint64_t{7}, uint64_t{1000}, uint64_t{1003}}) {
    for (uint64_t group : {uint64_t{1}, uint64_t{4}, uint64_t{8}, uint64_t{2000}}) {
      const SequenceOrder order = SequenceOrder::ByLength(RandomLengths(size), 5, group);
      for (uint32_t epoch = 0; epoch < 3; ++epoch) {
        std::set<uint64_t> seen;
        for (uint64_t n = 0; n < size; ++n) {
          const DrawnSequence drawn = order.At(epoch * size + n);
          EXPECT_EQ(drawn.epoch, epoch);
          EXPECT_TRUE(seen.insert(drawn.index).second);
        }
        EXPECT_EQ(*seen.rbegin(), size - 1);
      }
    }
  }
}

TEST(SequenceOrder, PutsEqualLengthsIntoOneStepInRandomOrderOfSteps) {
  constexpr uint64_t kSize = 4004;  // not a multiple of the group
  constexpr uint64_t kGroup = 8;
  const std::vector<uint32_t> lengths = RandomLengths(kSize);
  const SequenceOrder order = SequenceOrder::ByLength(lengths, 5, kGroup);
  std::vector<uint32_t> longest;
  uint64_t rounded = 0;
  uint64_t real = 0;
  for (uint64_t step = 0; step < 3 * kSize / kGroup; ++step) {
    uint32_t most = 0;
    for (uint64_t s = 0; s < kGroup; ++s) {
      const uint32_t length = lengths[order.At(step * kGroup + s).index];
      most = std::max(most, length);
      real += length;
    }
    rounded += most * kGroup;
    longest.push_back(most);
  }
  // Unsorted, the longest of eight uniform lengths is 16/9 of their mean.
  EXPECT_LT(static_cast<double>(rounded), 1.05 * static_cast<double>(real));
  EXPECT_FALSE(std::is_sorted(longest.begin(), longest.end()));
  EXPECT_FALSE(std::is_sorted(longest.rbegin(), longest.rend()));
}

TEST(SequenceOrder, DoesNotDependOnWhatWasAskedBefore) {
  const std::vector<uint32_t> lengths = RandomLengths(1000);
  const SequenceOrder one = SequenceOrder::ByLength(lengths, 5, 4);
  std::vector<uint64_t> forward;
  for (uint64_t n = 0; n < 2500; ++n) forward.push_back(one.At(n).index);
  const SequenceOrder other = SequenceOrder::ByLength(lengths, 5, 4);
  for (uint64_t n = 2500; n-- > 0;) ASSERT_EQ(other.At(n).index, forward[n]);
  const SequenceOrder reseeded = SequenceOrder::ByLength(lengths, 6, 4);
  bool differs = false;
  for (uint64_t n = 0; n < 100; ++n) differs |= reseeded.At(n).index != forward[n];
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace weft::engine
