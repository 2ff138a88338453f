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

TEST(CheckHistory, KnowsPausesOfJobsThatWait) {
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kPause, 2, 3), Look(kPaused, 4, 5),
                           Do(Call::kPause, 6, 7), Do(Call::kResume, 8, 9), Look(kQueued, 10, 11),
                           Do(Call::kResume, 12, 13, Outcome::kRefused)},
                          Movers::kNobody));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kPause, 2, 3), Look(kQueued, 4, 5)}))
      << "a pause that is lost";
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kPause, 2, 3), Look(kPaused, 4, 5),
                            Look(kStarting, 6, 7)}))
      << "nobody resumed it";
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kPause, 2, 3, Outcome::kRefused)},
                           Movers::kNobody));
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kPause, 2, 3), Do(Call::kCancel, 4, 5),
                           Look(kCancelled, 6, 7), Do(Call::kPause, 8, 9, Outcome::kRefused)},
                          Movers::kNobody));
}

TEST(CheckHistory, KnowsPausesOfJobsThatTrain) {
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kRunning, 2, 3), Do(Call::kPause, 4, 5),
                           Look(kPausing, 6, 7), Look(kPaused, 8, 9)}));
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kRunning, 2, 3), Do(Call::kPause, 4, 5),
                           Look(kPausing, 6, 7), Do(Call::kResume, 8, 9), Look(kRecovering, 10, 11),
                           Look(kQueued, 12, 13)}));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kRunning, 2, 3), Do(Call::kPause, 4, 5),
                            Look(kRunning, 6, 7)}))
      << "it cannot be past the pause";
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Look(kRunning, 2, 3), Look(kPausing, 4, 5)}))
      << "nobody asked for it";
}

TEST(CheckHistory, RefusesAPriorityThatNobodySet) {
  const auto update = [](int64_t priority, int64_t start, int64_t end) {
    return Operation{Call::kUpdate, Outcome::kDone, start, end, kAbsent, priority};
  };
  const auto look = [](int64_t priority, int64_t start, int64_t end) {
    return Operation{Call::kLook, Outcome::kDone, start, end, kQueued, priority};
  };
  EXPECT_TRUE(
      CanHaveBeen({Do(Call::kSubmit, 0, 1), look(0, 2, 3), update(5, 4, 5), look(5, 6, 7)}));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), update(5, 2, 3), look(0, 4, 5)}));
  EXPECT_FALSE(CanHaveBeen(
      {Do(Call::kSubmit, 0, 1), update(5, 2, 3), update(7, 4, 5), look(7, 6, 7), look(5, 8, 9)}));
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 3),
                           Do(Call::kUpdate, 4, 5, Outcome::kRefused)}));
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 3), update(5, 4, 5)},
                           Movers::kNobody));
}

TEST(CheckHistory, KnowsThatADeletedJobIsGone) {
  const std::vector<Operation> deleted = {Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 3),
                                          Do(Call::kDelete, 4, 5)};
  const auto then = [&](const Operation& operation) {
    std::vector<Operation> all = deleted;
    all.push_back(operation);
    return CanHaveBeen(all, Movers::kNobody);
  };
  EXPECT_TRUE(then(Look(kAbsent, 6, 7)));
  EXPECT_FALSE(then(Look(kCancelled, 6, 7)));
  for (const Call call : {Call::kCancel, Call::kRetry, Call::kPause, Call::kDelete}) {
    EXPECT_TRUE(then(Do(call, 6, 7, Outcome::kMissing)));
    EXPECT_FALSE(then(Do(call, 6, 7)));
    EXPECT_FALSE(then(Do(call, 6, 7, Outcome::kRefused)));
  }
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kCancel, 2, 3),
                            Do(Call::kRetry, 4, 5, Outcome::kMissing)}))
      << "nobody deleted it";
  EXPECT_FALSE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kDelete, 2, 3)}, Movers::kNobody))
      << "a job that waits";
  EXPECT_TRUE(CanHaveBeen({Do(Call::kSubmit, 0, 1), Do(Call::kDelete, 2, 3, Outcome::kRefused)}));
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
  EXPECT_NE(status.message().find("look QUEUED priority 0 [4, 5]"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace weft::testing
