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
