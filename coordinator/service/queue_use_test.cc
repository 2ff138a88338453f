#include "coordinator/service/queue_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::coordinator {
namespace {

QueueSpec Queue(const std::string& name, const std::string& parent, double weight) {
  QueueSpec queue;
  queue.name = name;
  queue.parent = parent;
  queue.weight = weight;
  return queue;
}

const QueueUse& Find(const std::vector<QueueUse>& uses, const std::string& name) {
  for (const QueueUse& use : uses) {
    if (use.spec.name == name) return use;
  }
  throw std::out_of_range(name);
}

TEST(QueueUse, CountsJobsForTheirQueueAndAllAboveIt) {
  const QueuesSpec queues = {{Queue("lab", "", 3), Queue("vision", "lab", 1),
                              Queue("speech", "lab", 2), Queue("default", "", 1)}};
  const std::vector<QueuedUse> jobs = {{"vision", {4, 0}, false},
                                       {"speech", {2, 0}, false},
                                       {"speech", {}, true},
                                       {"default", {0, 6}, false}};
  const std::vector<QueueUse> uses = QueueUses(queues, {16, 48}, jobs);
  ASSERT_EQ(uses.size(), 4u);
  const QueueUse& lab = Find(uses, "lab");
  EXPECT_EQ(lab.used, (ComputeAmount{6, 0}));
  EXPECT_EQ(lab.running_jobs, 2);
  EXPECT_EQ(lab.waiting_jobs, 1);
  EXPECT_DOUBLE_EQ(lab.fair_share_ratio, 6 / (0.75 * 16));
  EXPECT_DOUBLE_EQ(Find(uses, "vision").fair_share_ratio, 4 / (0.75 / 3 * 16));
  EXPECT_DOUBLE_EQ(Find(uses, "speech").fair_share_ratio, 2 / (0.75 * 2 / 3 * 16));
  EXPECT_DOUBLE_EQ(Find(uses, "default").fair_share_ratio, 6 / (0.25 * 48)) << "it holds cores";
}

TEST(QueueUse, HasADefaultQueueThatTakesJobsOfQueuesThatAreGone) {
  const std::vector<QueueUse> uses = QueueUses({}, {}, {{"gone", {1, 0}, false}});
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].spec.name, "default");
  EXPECT_EQ(uses[0].running_jobs, 1);
  EXPECT_EQ(uses[0].fair_share_ratio, 0) << "of a cluster that has nothing";
}

}  // namespace
}  // namespace weft::coordinator
