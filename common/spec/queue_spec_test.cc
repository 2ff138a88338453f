#include "common/spec/queue_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

QueueSpec Queue(const std::string& name, const std::string& parent = "", int64_t quota = 0) {
  QueueSpec queue;
  queue.name = name;
  queue.parent = parent;
  queue.quota_gpus = quota;
  return queue;
}

TEST(Queues, AreReadStrictly) {
  const Result<QueuesSpec> read = FromJson<QueuesSpec>(Json::parse(
      R"({"queues": [{"name": "team", "quota_gpus": 8, "limit_gpus": 16},
                     {"name": "nightly", "parent": "team", "weight": 0.5}]})"));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(ValidateQueues(*read).ok());
  EXPECT_EQ(read->queues[0].limit_gpus, 16);
  EXPECT_FALSE(read->queues[1].limit_gpus);
  EXPECT_EQ(FromJson<QueuesSpec>(ToJson(*read)).value(), *read);
  EXPECT_THAT(FromJson<QueuesSpec>(Json::parse(R"({"queues": [{"name": "a", "wieght": 1}]})"))
                  .status()
                  .message(),
              HasSubstr("weight"));
}

TEST(Queues, ThatContradictThemselvesAreRefused) {
  EXPECT_TRUE(ValidateQueues({{Queue("a", "", 8), Queue("b", "a", 5), Queue("c", "a", 3)}}).ok());
  const auto refusal = [](std::vector<QueueSpec> queues) {
    return ValidateQueues({std::move(queues)}).message();
  };
  EXPECT_THAT(refusal({Queue("Big")}), HasSubstr("lower-case"));
  EXPECT_THAT(refusal({Queue("a"), Queue("a")}), HasSubstr("'a' is declared twice"));
  EXPECT_THAT(refusal({Queue("team"), Queue("b", "taem")}), HasSubstr("did you mean 'team'"));
  EXPECT_THAT(refusal({Queue("a", "b"), Queue("b", "a")}), HasSubstr("circle"));
  EXPECT_THAT(refusal({Queue("a", "", 8), Queue("b", "a", 5), Queue("c", "a", 4)}),
              HasSubstr("quota_gpus of 9 together, more than its own 8"));
  QueueSpec limited = Queue("a", "", 8);
  limited.limit_gpus = 4;
  EXPECT_THAT(refusal({limited}), HasSubstr("limit_gpus (4) is below quota_gpus (8)"));
}

TEST(Queues, BoundThePrioritiesOfTheirJobsAndOfThoseBelow) {
  QueuesSpec spec = {{Queue("team"), Queue("nightly", "team"), Queue("free")}};
  EXPECT_TRUE(CheckPriorityOfJob({}, kDefaultQueue, 1000).ok());
  EXPECT_TRUE(CheckPriorityOfJob(spec, "nightly", 1000).ok());
  spec.queues[0].max_priority = 10;
  spec.queues[1].max_priority = 20;
  EXPECT_TRUE(CheckPriorityOfJob(spec, "nightly", 10).ok());
  EXPECT_TRUE(CheckPriorityOfJob(spec, "nightly", -1000).ok());
  EXPECT_TRUE(CheckPriorityOfJob(spec, "free", 1000).ok());
  const Status above = CheckPriorityOfJob(spec, "nightly", 11);
  EXPECT_EQ(above.code(), StatusCode::kInvalid);
  EXPECT_THAT(above.message(),
              HasSubstr("priority 11 is above the max_priority 10 of queue 'team'"));
  spec.queues[1].max_priority = -5;
  EXPECT_THAT(CheckPriorityOfJob(spec, "nightly", 0).message(),
              HasSubstr("max_priority -5 of queue 'nightly'"));
  // Jobs of a queue that is gone count for the default one.
  EXPECT_TRUE(CheckPriorityOfJob(spec, "gone", 1000).ok());
  spec.queues.push_back(Queue(kDefaultQueue));
  spec.queues.back().max_priority = 0;
  EXPECT_FALSE(CheckPriorityOfJob(spec, "gone", 1).ok());
  spec.queues[0].max_priority = 2000;
  EXPECT_FALSE(FromJson<QueuesSpec>(ToJson(spec)).ok());
}

TEST(Queues, AJobNamesOneThatHasNoneBelow) {
  const QueuesSpec spec = {{Queue("team"), Queue("nightly", "team")}};
  EXPECT_TRUE(CheckQueueOfJob({}, kDefaultQueue).ok());
  EXPECT_TRUE(CheckQueueOfJob(spec, kDefaultQueue).ok());
  EXPECT_TRUE(CheckQueueOfJob(spec, "nightly").ok());
  EXPECT_THAT(CheckQueueOfJob(spec, "team").message(), HasSubstr("such as 'nightly'"));
  EXPECT_THAT(CheckQueueOfJob(spec, "nihgtly").message(), HasSubstr("did you mean 'nightly'"));
}

}  // namespace
}  // namespace weft
