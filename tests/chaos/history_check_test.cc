// The checker of histories itself: it must accept what can have been, and nothing else.
#include "tests/chaos/history.h"

#include <gtest/gtest.h>

namespace weft::testing {
namespace {

using enum ModelState;
using Call = Operation::Call;
using Outcome = Operation::Outcome;

Operation Do(Call call, int64_t start, int64_t end, Outcome outcome = Outcome::kDone) {
  return {call, outcome, start, end};
}
Operation Look(ModelState seen, int64_t start, int64_t end) {
  return {Call::kLook, Outcome::kDone, start, end, seen};
}
bool CanHaveBeen(const std::vector<Operation>& operations, Movers movers = Movers::kService) {
  return CheckHistory(operations, movers).ok();
}

TEST(CheckHistory, AcceptsCallsOneAfterTheOther) {
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kQueued, 2, 3), Do(Call::kCancel, 4, 5),
                           Look(kCancelled, 6, 7), Do(Call::kRetry, 8, 9), Look(kQueued, 10, 11)}));
}

TEST(CheckHistory, RefusesALostChange) {
  EXPECT_FALSE(
      CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 3), Look(kQueued, 4, 5)}));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kAbsent, 2, 3)}));
}

TEST(CheckHistory, RefusesALookAtThePast) {
  EXPECT_FALSE(
      CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kSucceeded, 2, 3), Look(kRunning, 4, 5)}));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 3),
                            Look(kCancelled, 4, 5), Look(kQueued, 6, 7)}));
}

TEST(CheckHistory, LetsCallsAtTheSameTimeTakeEffectInAnyOrder) {
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 9), Look(kQueued, 3, 8),
                           Look(kCancelled, 4, 7)}));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 9),
                            Look(kCancelled, 3, 4), Look(kQueued, 5, 6)}))
      << "but not both";
}

TEST(CheckHistory, LetsACallWithoutAnAnswerTakeEffectLateOrNever) {
  const Operation cancel = Do(Call::kCancel, 2, 3, Outcome::kUnknown);
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), cancel, Look(kQueued, 4, 5)}));
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), cancel, Look(kCancelled, 4, 5)}));
  EXPECT_TRUE(
      CanHaveBeen({Do(Call::kSubmit, 0, 1), cancel, Look(kQueued, 4, 5), Look(kCancelled, 6, 7)}));
  const Operation later = Do(Call::kCancel, 4, 5, Outcome::kUnknown);
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kCancelled, 2, 3), later}))
      << "but not before it was made";
}

TEST(CheckHistory, RefusesARefusalThatNoStateExplains) {
  const Operation refused = Do(Call::kRetry, 4, 5, Outcome::kRefused);
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), refused}));
  EXPECT_FALSE(CanHaveBeen(
      {Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 3), refused, Look(kCancelled, 6, 7)},
      Movers::kNobody));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kRetry, 2, 3)}, Movers::kNobody))
      << "a retry of a job that never ended";
}

TEST(CheckHistory, LetsTheServiceStartAndEndAttempts) {
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kRunning, 2, 3), Look(kQueued, 4, 5),
                           Look(kRecovering, 6, 7), Look(kFailed, 8, 9), Do(Call::kRetry, 10, 11),
                           Look(kSucceeded, 12, 13)}));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kCancelling, 2, 3)}))
      << "nobody asked for it";
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kStarting, 2, 3)}, Movers::kNobody));
}

TEST(CheckHistory, SaysWhatItCannotExplain) {
  const Status status = CheckHistory(
      {Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 3), Look(kQueued, 4, 5)}, Movers::kService);
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  EXPECT_NE(status.message().find("beyond the first 2"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("look QUEUED [4, 5]"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace weft::testing
