#include "coordinator/recovery/retry_delay.h"

#include <gtest/gtest.h>

#include <set>

namespace weft::coordinator {
namespace {

AttemptRecord Ended(Reason reason, std::optional<int64_t> first_step = std::nullopt) {
  AttemptRecord attempt;
  attempt.epoch = 4;
  attempt.reason = reason;
  attempt.first_step = first_step;
  attempt.ended_at = 1;
  return attempt;
}

TEST(RetryDelay, DoublesUpToTheCapWithJitter) {
  const RetryRules rules{.first_seconds = 1, .most_seconds = 100};
  double whole = 1;
  for (int64_t failures = 1; failures < 100; ++failures, whole = std::min(2 * whole, 100.0)) {
    const double delay = RetryDelaySeconds(rules, failures, "job", failures);
    EXPECT_GE(delay, whole / 2) << failures;
    EXPECT_LE(delay, whole) << failures;
  }
  EXPECT_EQ(RetryDelaySeconds(rules, 5, "job", 5), RetryDelaySeconds(rules, 5, "job", 5))
      << "a restarted coordinator says the same";
}

TEST(RetryDelay, SpreadsJobsThatFailTogether) {
  std::set<double> delays;
  for (int job = 0; job < 20; ++job) {
    delays.insert(RetryDelaySeconds({}, 6, "job-" + std::to_string(job), 6));
  }
  EXPECT_GT(*delays.rbegin() - *delays.begin(), 4) << "of 16 to 32 seconds";
}

TEST(RetryDelay, CountsFailuresUntilACheckpointIsSaved) {
  EXPECT_EQ(FailuresInARow(0, Ended(Reason::kRankDied), {}, 0), 1);
  EXPECT_EQ(FailuresInARow(3, Ended(Reason::kRankDied), {}, 0), 4);
  EXPECT_EQ(FailuresInARow(3, Ended(Reason::kHung, 11), 10, 0), 4) << "from the same checkpoint";
  EXPECT_EQ(FailuresInARow(3, Ended(Reason::kWorkerLost, 11), 20, 0), 1) << "it came further";
  for (Reason reason : {Reason::kDrained, Reason::kReplanned, Reason::kCompleted}) {
    EXPECT_EQ(FailuresInARow(3, Ended(reason, 11), 10, 0), 3);
    EXPECT_EQ(FailuresInARow(3, Ended(reason, 11), 11, 0), 0);
  }
}

TEST(RetryDelay, CountsNoFailureBeforeAUsersRetry) {
  EXPECT_EQ(FailuresInARow(3, Ended(Reason::kRankDied), {}, /*retried_from=*/4), 0);
  EXPECT_EQ(FailuresInARow(0, Ended(Reason::kRankDied), {}, /*retried_from=*/3), 1);
}

}  // namespace
}  // namespace weft::coordinator
