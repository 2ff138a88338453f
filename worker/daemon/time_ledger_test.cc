#include "worker/daemon/time_ledger.h"

#include <gtest/gtest.h>

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

nanoseconds Sum(const TimeLedger& ledger) {
  nanoseconds sum{0};
  for (int c = 0; c < kTimeClasses; ++c) sum += ledger.total(static_cast<TimeClass>(c));
  return sum;
}

TEST(TimeLedger, FirstAttemptStartsThenTrainsThenStalls) {
  TimeLedger ledger(seconds(100), 0);
  ledger.OnStep(seconds(103), 1, seconds(1));
  ledger.OnStep(seconds(104), 2, seconds(1));
  ledger.OnStep(seconds(110), 5, seconds(1));  // three steps, three seconds of something else
  ledger.Finish(seconds(112));
  EXPECT_EQ(ledger.total(TimeClass::kStartup), seconds(2));
  EXPECT_EQ(ledger.total(TimeClass::kUseful), seconds(5));
  EXPECT_EQ(ledger.total(TimeClass::kStall), seconds(5));
  EXPECT_EQ(Sum(ledger), seconds(12));
}

TEST(TimeLedger, ResumedAttemptRepeatsTheStepsThatWereLost) {
  TimeLedger ledger(seconds(0), 7);  // died at step 7, resumes from the checkpoint of step 4
  ledger.OnStep(seconds(3), 5, seconds(1));
  ledger.OnStep(seconds(7), 9, seconds(1));  // 6, 7 again; 8, 9 new
  EXPECT_EQ(ledger.total(TimeClass::kRecovery), seconds(2));
  EXPECT_EQ(ledger.total(TimeClass::kRework), seconds(3));
  EXPECT_EQ(ledger.total(TimeClass::kUseful), seconds(2));
  EXPECT_EQ(Sum(ledger), seconds(7));
}

TEST(TimeLedger, NeverGivesTimeTwice) {
  TimeLedger ledger(seconds(0), 0);
  ledger.OnStep(milliseconds(500), 1, seconds(10));  // says it took longer than there was
  ledger.OnStep(milliseconds(400), 2, seconds(1));   // out of order
  ledger.Finish(milliseconds(500));
  EXPECT_EQ(Sum(ledger), milliseconds(500));
  TimeLedger never_stepped(seconds(0), 3);
  never_stepped.Finish(seconds(4));
  EXPECT_EQ(never_stepped.total(TimeClass::kRecovery), seconds(4));
}

}  // namespace
}  // namespace weft::daemon
