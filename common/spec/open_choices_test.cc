#include "common/spec/open_choices.h"

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/offload.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

JobSpec Job() {
  JobSpec job;
  job.name = "job";
  job.data.train = {"a.txt"};
  return job;
}

JobSpec OffloadLeftOpen() {
  JobSpec job = Job();
  ResourceSpec& resources = job.resources;
  resources.offload_optimizer = resources.offload_parameters = resources.offload_activations =
      "auto";
  resources.offload_directory = "/disk";
  resources.host_link_bytes_per_second = 1'000'000;
  return job;
}

TEST(ChoicesOf, IsTheJobWhereNothingIsLeftOpen) {
  JobSpec job = Job();
  job.resources.offload_optimizer = "host";
  EXPECT_FALSE(LeavesChoices(job));
  const std::vector<JobSpec> choices = ChoicesOf(job);
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(ToJson(choices[0]), ToJson(job));
}

TEST(ChoicesOf, HasEveryWayOnceAndWithoutWhatItHasNoUseFor) {
  const JobSpec job = OffloadLeftOpen();
  EXPECT_TRUE(LeavesChoices(job));
  EXPECT_FALSE(Offloads(job.resources));
  std::set<std::string> ways;
  for (const JobSpec& choice : ChoicesOf(job)) {
    const ResourceSpec& r = choice.resources;
    EXPECT_FALSE(LeavesChoices(choice));
    const bool in_file = r.offload_optimizer == "nvme" || r.offload_parameters == "nvme";
    EXPECT_EQ(r.offload_directory, in_file ? "/disk" : "");
    EXPECT_EQ(r.host_link_bytes_per_second, Offloads(r) ? 1'000'000 : 0);
    const std::string way = r.offload_optimizer + " " + r.offload_parameters + " " +
                            r.offload_activations + " " + r.recompute;
    EXPECT_TRUE(ways.insert(way).second) << way;
  }
  // Four places of the state, four of weights, and of activations two; one of these has two
  // schedules.
  EXPECT_EQ(ways.size(), 4u * 4u * 3u);
  EXPECT_TRUE(ways.contains("none none none auto"));
  EXPECT_TRUE(ways.contains("nvme host host optimal"));
  // The first has nothing outside.
  EXPECT_FALSE(Offloads(ChoicesOf(job).front().resources));
}

TEST(ChoicesOf, KeepsWhatTheJobSays) {
  JobSpec job = OffloadLeftOpen();
  job.resources.offload_activations = "host";
  job.resources.offload_directory.clear();
  for (const JobSpec& choice : ChoicesOf(job)) {
    EXPECT_EQ(choice.resources.offload_activations, "host");
    EXPECT_EQ(choice.resources.recompute, "auto");
    EXPECT_NE(choice.resources.offload_optimizer, "nvme") << "there is no folder";
  }
}

TEST(ChoicesOf, TriesPrecisionsWithTheScalingOfTheirOwn) {
  JobSpec job = Job();
  job.train.precision = "auto";
  job.train.fp8.bf16_first_blocks = 1;
  std::set<std::string> precisions;
  for (const JobSpec& choice : ChoicesOf(job)) {
    EXPECT_TRUE(ValidateJob(choice).ok()) << ValidateJob(choice).message();
    EXPECT_EQ(choice.train.fp8.bf16_first_blocks, choice.train.precision == "fp8" ? 1 : 0);
    precisions.insert(choice.train.precision);
  }
  EXPECT_EQ(precisions, (std::set<std::string>{"fp32", "bf16", "fp16", "fp8"}));
}

TEST(ValidateJob, TakesAJobWithOnePossibleChoice) {
  JobSpec job = OffloadLeftOpen();
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  // What goes with nothing outside the device is possible with all on it.
  job.resources.zero_stage = 1;
  job.optimizer.name = "lion";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  // Weights on the host need an optimizer there, and lion has none.
  job.resources.zero_stage = 0;
  job.resources.offload_parameters = "host";
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("offload_parameters host"));
  job.optimizer.name = "adamw";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(ValidateJob, TellsWhatIsWrongApartFromWhatIsLeftOpen) {
  JobSpec job = OffloadLeftOpen();
  job.model.width = 100;
  job.model.heads = 3;
  const Status open = ValidateJob(job);
  job.resources = {};
  EXPECT_EQ(open.message(), ValidateJob(job).message());
}

}  // namespace
}  // namespace weft
