#include "worker/engine/data/unread_sequences.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;

TEST(UnreadSequences, PlacesCountWhatIsLeftOutFirst) {
  const UnreadSequences unread({4, 6, 10, 11, 20});
  EXPECT_THAT(unread.At(0, 2), ElementsAre(SequenceRange{4, 2}));
  EXPECT_THAT(unread.At(1, 4),
              ElementsAre(SequenceRange{5, 1}, SequenceRange{10, 1}, SequenceRange{20, 2}));
  EXPECT_THAT(unread.At(3, 1), ElementsAre(SequenceRange{20, 1}));
  EXPECT_THAT(unread.At(13, 5), ElementsAre(SequenceRange{30, 5}));
}

TEST(UnreadSequences, WhatIsRemovedIsLeftOut) {
  UnreadSequences unread({0});
  unread.Remove(std::vector<SequenceRange>{{0, 2}, {4, 2}});
  EXPECT_THAT(unread.bounds(), ElementsAre(2, 4, 6));
  unread.Remove(std::vector<SequenceRange>{{0, 1}, {3, 3}});
  EXPECT_THAT(unread.bounds(), ElementsAre(3, 4, 6, 7, 10));
}

TEST(UnreadSequences, EachIsReadOnceInAnyOrder) {
  PhiloxStream random({3, 0, 0});
  UnreadSequences unread({0});
  std::set<int64_t> read;
  for (int round = 0; round < 200; ++round) {
    std::vector<SequenceRange> places;
    int64_t place = 0;
    for (uint64_t i = random.Below(4) + 1; i > 0; --i) {
      place += static_cast<int64_t>(random.Below(5));
      const auto count = static_cast<int64_t>(random.Below(4) + 1);
      places.push_back({place, count});
      place += count;
      for (const SequenceRange& range : unread.At(places.back().first, count)) {
        for (int64_t k = 0; k < range.count; ++k) {
          EXPECT_TRUE(read.insert(range.first + k).second) << range.first + k << " again";
        }
      }
    }
    unread.Remove(places);
    ASSERT_TRUE(std::is_sorted(unread.bounds().begin(), unread.bounds().end()));
  }
  for (size_t i = 0; i + 1 < unread.bounds().size(); i += 2) {
    for (int64_t left = unread.bounds()[i]; left < unread.bounds()[i + 1]; ++left)
      read.insert(left);
  }
  EXPECT_EQ(std::ssize(read), unread.bounds().back()) << "read or left out, nothing else";
  EXPECT_EQ(*read.rbegin() + 1, unread.bounds().back());
}

}  // namespace
}  // namespace weft::engine
