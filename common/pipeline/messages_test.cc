#include "common/pipeline/messages.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/pipeline/named_schedule.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

TEST(PipelineMessages, TellWhatTheirSenderHasTaken) {
  // Rank 0: F0 F1 B0 F2 B1 F3 B2 B3; rank 1: F0 B0 F1 B1 F2 B2 F3 B3.
  const PipelineSchedule pairs = OneForwardOneBackwardSchedule(2, 4);
  EXPECT_THAT(TakenBeforeSending(pairs, 0, PipelineSide::kNext), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(TakenBeforeSending(pairs, 1, PipelineSide::kPrevious), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(TakenBeforeSending(pairs, 0, PipelineSide::kPrevious), ElementsAre());
  EXPECT_EQ(MostMessagesInFlight(pairs, 0), 2);
  EXPECT_EQ(MostMessagesInFlight(pairs, 1), 2);
  const PipelineSchedule all_forward = GPipeSchedule(3, 4);
  EXPECT_THAT(TakenBeforeSending(all_forward, 1, PipelineSide::kNext), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(TakenBeforeSending(all_forward, 1, PipelineSide::kPrevious), ElementsAre(4, 4, 4, 4));
  EXPECT_EQ(MostMessagesInFlight(all_forward, 1), 4);
}

// Few micro-batches in flight need few messages, however many micro-batches a step has.
TEST(PipelineMessages, AreKeptForNoLongerThanMicroBatchesAreInFlight) {
  for (const int64_t ranks : {2, 3, 4}) {
    for (const auto& [name, chunks] :
         {std::pair<std::string, int64_t>{"1f1b", 1}, {"zero_bubble", 1}, {"interleaved", 2}}) {
      for (const int64_t micro_batches : {4 * ranks, 8 * ranks}) {
        SCOPED_TRACE(name + " of " + std::to_string(ranks));
        const auto schedule = NamedSchedule(name, ranks, chunks, micro_batches);
        ASSERT_TRUE(schedule.ok());
        for (int64_t rank = 0; rank < ranks; ++rank) {
          for (const PipelineSide side : {PipelineSide::kNext, PipelineSide::kPrevious}) {
            const auto told = TakenBeforeSending(*schedule, rank, side);
            EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
          }
          EXPECT_LE(MostMessagesInFlight(*schedule, rank), 2 * ranks * chunks);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
