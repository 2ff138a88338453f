#include "worker/trainer/activity_reporter.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

namespace weft::trainer {
namespace {

using std::chrono::milliseconds;

/// Keeps what activities are reported; "alive" for an AliveMessage.
class Kept : public Reporter {
 public:
  void Report(const RankMessage& message) override {
    std::lock_guard lock(mutex_);
    const auto* activity = std::get_if<ActivityMessage>(&message);
    said.push_back(activity != nullptr ? activity->activity : "alive");
    EXPECT_TRUE(activity != nullptr || std::holds_alternative<AliveMessage>(message));
  }
  bool StopRequested() override { return false; }

  std::vector<std::string> said;

 private:
  std::mutex mutex_;
};

TEST(ActivityReporter, ReportsLifeOnceASecondAtMost) {
  Kept kept;
  ManualClock clock;
  ActivityReporter activity(kept, clock);
  for (int i = 0; i < 999; ++i) {
    clock.Advance(milliseconds(1));
    activity.OnProgress();
  }
  EXPECT_TRUE(kept.said.empty()) << "the steps of a quick job say all";
  for (int i = 0; i < 2500; ++i) {
    clock.Advance(milliseconds(1));
    activity.OnProgress();
  }
  EXPECT_EQ(kept.said, std::vector<std::string>(3, "alive"));
  clock.Advance(std::chrono::hours(1));
  EXPECT_EQ(kept.said.size(), 3u) << "only progress is life";
  activity.OnProgress();
  activity.OnProgress();
  EXPECT_EQ(kept.said.size(), 4u);
}

TEST(ActivityReporter, OneOfManyThreadsReports) {
  Kept kept;
  ManualClock clock;
  ActivityReporter activity(kept, clock);
  clock.Advance(std::chrono::seconds(5));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { activity.OnProgress(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(kept.said, std::vector<std::string>{"alive"});
}

TEST(ActivityReporter, ReportsExchangesBetweenSteps) {
  Kept kept;
  ActivityReporter activity(kept);
  activity.Report({"saving", 1 << 20});
  activity.OnExchange(true);
  activity.OnExchange(false);
  EXPECT_EQ(kept.said, (std::vector<std::string>{"saving", "exchanging", "training"}));
}

}  // namespace
}  // namespace weft::trainer
