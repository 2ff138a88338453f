// Quotas and fair shares of queues that form trees: who borrows from whom, and who gives it back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/testing.h"

namespace weft::coordinator {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

QueueSpec Child(const std::string& name, const std::string& parent, int64_t quota = 0) {
  QueueSpec queue = Queue(name, quota);
  queue.parent = parent;
  return queue;
}

/// The job that waits wants this many GPUs instead.
void Want(GpuSituation& s, int64_t gpus) {
  s.snapshot.queue[0].size->amount.gpus = gpus;
  s.specs.back()->resources.ranks = gpus;
}

/// A job on the first machine's CPUs.
void RunOnCores(GpuSituation& s, const std::string& id, const std::string& queue, int64_t cores) {
  JobSpec& spec = *s.specs.emplace_back(std::make_unique<JobSpec>());
  spec.resources.device = "cpu";
  spec.resources.ranks = cores;
  const CapacityPool pool(s.snapshot.cluster, s.snapshot.free);
  Plan& plan = *s.plans.emplace_back(std::make_unique<Plan>(*pool.Place(CorePlan(cores))));
  TakeCapacity(plan, s.snapshot.free);
  ActiveJob& job = s.snapshot.active.emplace_back();
  job.id = id;
  job.queue = queue;
  job.submitted_at = GpuSituation::kNow - 10000;
  job.job.spec = &spec;
  job.job.plan = &plan;
  job.job.attempt_seconds = 10000;
  job.job.steps_left = 10000;
  job.job.step_seconds = plan.prediction.step_seconds;
  job.job.saved = true;
}

TEST(QueueHierarchy, AChildBorrowsOfItsSiblingWhatOthersMustGiveBack) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("parent", 4), Child("a", "parent", 2), Child("b", "parent", 2),
                       Queue("other", 4)};
  s.Run("own", 2, 1000).queue = "a";
  s.Run("borrowed", 2, 1000).queue = "other";
  ActiveJob& others = s.Run("others", 4, 1000);
  others.queue = "other";
  others.priority = 1;
  // Beyond the quota of its queue, and within that of the parent: b leaves it free.
  s.Wait("more", 2, 9000).queue = "a";
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_THAT(Victims(decisions), ElementsAre("borrowed"));
  EXPECT_THAT(decisions.preemptions[0].why, HasSubstr("quota of queue a"));
  Want(s, 4);
  EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << "the parent itself would borrow";
}

TEST(QueueHierarchy, ASiblingGivesBackWhatTheParentOwns) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("parent", 4), Child("a", "parent", 2), Child("b", "parent", 2),
                       Queue("other", 4)};
  for (const char* id : {"b1", "b2"}) s.Run(id, 2, 1000).queue = "b";
  for (const char* id : {"o1", "o2"}) {
    ActiveJob& job = s.Run(id, 2, 1000);
    job.queue = "other";
    job.priority = -1;  // the cheapest to displace, but they hold what is theirs
  }
  s.Wait("owned", 2, 9000).queue = "a";
  const SchedulerDecisions decisions = s.Decide();
  ASSERT_THAT(Victims(decisions), ElementsAre(AnyOf("b1", "b2")));
  EXPECT_THAT(decisions.preemptions[0].why, HasSubstr("quota of queue a"));
  Want(s, 4);
  EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << "a itself would borrow";
}

TEST(QueueHierarchy, OfTheChildrenOfABorrowerTheOneThatBorrowsGivesBack) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("owner", 4), Queue("parent", 4), Child("within", "parent", 4),
                       Child("beyond", "parent")};
  s.Run("own", 4, 1000).queue = "within";
  ActiveJob& borrows = s.Run("borrows", 4, 1000);
  borrows.queue = "beyond";
  borrows.priority = 9;  // the dearest to displace
  s.Wait("owned", 4, 9000).queue = "owner";
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("borrows"));
  s.snapshot.active[1].preemptible = false;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty());
  s.snapshot.queue[0].priority = 5;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << "a priority is one over borrowers alone";
}

TEST(QueueHierarchy, FairShareLeavesWhatIsWithinAQuota) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("owner", 4), Queue("other", 4), Queue("borrower")};
  s.Run("own", 4, 1000).queue = "other";
  ActiveJob& borrows = s.Run("borrows", 4, 1000);
  borrows.queue = "borrower";
  borrows.priority = 9;
  s.Wait("owned", 4, 9000).queue = "owner";
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("borrows"));
  s.snapshot.active[1].preemptible = false;
  EXPECT_THAT(Victims(s.Decide()), IsEmpty());
}

TEST(QueueHierarchy, WhoBorrowsCoresAloneGivesBackNoGpus) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("owner", 4), Queue("other", 4), Queue("third", 4)};
  s.Run("own", 4, 1000).queue = "other";
  s.Run("thirds", 4, 1000).queue = "third";
  RunOnCores(s, "cores", "other", 8);
  s.Wait("owned", 4, 9000).queue = "owner";
  for (const int64_t priority : {0, 5}) {
    s.snapshot.queue[0].priority = priority;
    EXPECT_THAT(Victims(s.Decide()), IsEmpty()) << priority;
  }
  s.snapshot.queues[1].quota_gpus = 3;
  EXPECT_THAT(Victims(s.Decide()), ElementsAre("own")) << "that is borrowed";
}

TEST(QueueHierarchy, ChildrenDivideTheShareOfTheirParentByTheirWeights) {
  GpuSituation s(1);
  s.snapshot.queues = {Queue("parent"), Child("heavy", "parent"), Child("light", "parent"),
                       Queue("single")};
  s.snapshot.queues[1].weight = 3;
  for (int i = 0; i < 8; ++i) {
    s.Wait("l" + std::to_string(i), 1, 10).queue = "light";
    s.Wait("h" + std::to_string(i), 1, 1000).queue = "heavy";
    s.Wait("s" + std::to_string(i), 1, 100).queue = "single";
  }
  std::map<char, int> started;
  for (const std::string& id : Starts(s.Decide())) ++started[id[0]];
  EXPECT_THAT(started, ElementsAre(Pair('h', 3), Pair('l', 1), Pair('s', 4)));
}

}  // namespace
}  // namespace weft::coordinator
