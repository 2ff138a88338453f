#include "coordinator/scheduler/spares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;

/// Jobs of a whole machine with eight GPUs.
struct SpareSituation : GpuSituation {
  explicit SpareSituation(int machines) : GpuSituation(machines) {
    snapshot.rules.spare_workers = 1;
  }
  QueuedJob& WaitAgain(const std::string& id, double seconds) {
    QueuedJob& job = Wait(id, 8, seconds);
    job.last_plan = plans.emplace_back(std::make_unique<Plan>(GpuPlan(8))).get();
    job.recovers = true;
    return job;
  }
};

TEST(Spares, AreTheLastWorkersWithoutRanks) {
  SpareSituation s(3);
  const auto left = [&](int64_t spares) {
    return WithoutSpares(s.snapshot.cluster, s.snapshot.free, spares);
  };
  EXPECT_THAT(left(0), ElementsAre(Key("m0"), Key("m1"), Key("m2")));
  EXPECT_THAT(left(2), ElementsAre(Key("m0")));
  EXPECT_THAT(left(9), IsEmpty());
  s.snapshot.free["m2"].cores -= 1;
  EXPECT_THAT(left(1), ElementsAre(Key("m0"), Key("m2")));
}

TEST(Spares, OnlyAJobThatRecoversStartsThere) {
  SpareSituation s(2);
  s.Wait("new", 8, 100);
  s.WaitAgain("again", 1000);
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), ElementsAre("again")) << "what it leaves is the spare";
  ASSERT_EQ(decisions.waits.size(), 1u);
  EXPECT_EQ(decisions.waits[0].job_id, "new");
  s.snapshot.queue[1].recovers = false;
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("new"));
  s.snapshot.rules.spare_workers = 0;
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("new", "again"));
}

TEST(Spares, TheHigherPriorityRecoversFirst) {
  SpareSituation s(1);
  s.WaitAgain("low", 10);
  s.WaitAgain("high", 1000).priority = 1;
  EXPECT_THAT(Starts(s.Decide()), ElementsAre("high"));
}

TEST(Spares, AJobThatRecoversKeepsWithinTheLimitOfItsQueue) {
  SpareSituation s(2);
  QueueSpec team = Queue("team");
  team.limit_gpus = 4;
  s.snapshot.queues = {team};
  s.WaitAgain("again", 100).queue = "team";
  const SchedulerDecisions decisions = s.Decide();
  EXPECT_THAT(Starts(decisions), IsEmpty());
  ASSERT_EQ(decisions.waits.size(), 1u) << "it says so once";
  EXPECT_EQ(decisions.waits[0].reason, Reason::kWaitingForQuota);
}

}  // namespace
}  // namespace weft::coordinator
