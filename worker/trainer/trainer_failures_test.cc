// How a rank ends that cannot go on: numbers that are not finite, and no memory.

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>

#include "worker/trainer/run_attempt.h"
#include "worker/trainer/testing/trainer_process.h"

namespace weft::trainer {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class TrainerFailuresTest : public TrainerProcessTest {
 protected:
  /// The first update spoils the weights: they explode by the learning rate, or those of positions
  /// that no sequence reaches become NaN, by 0 / (0 + epsilon), which no loss would ever show.
  JobSpec Diverging(const std::string& how, int64_t steps) const {
    JobSpec job = Spec("").job;
    job.train.steps = steps;
    job.schedule.kind = "constant";
    job.schedule.warmup_steps = 0;
    job.checkpoint.every_steps = 2;
    if (how == "explodes") {
      job.optimizer.learning_rate = 100;
      job.train.gradient_clip_norm = 0;
    } else {
      job.optimizer.epsilon = 0;
      job.train.sequence_length = job.model.context / 2;
    }
    return job;
  }
};

TEST_F(TrainerFailuresTest, ADivergedTrainingEndsAndKeepsItsGoodCheckpoints) {
  AttemptSpec spec = Spec("diverged");
  spec.job.checkpoint.every_steps = 2;
  const JobSpec sound = spec.job;
  ASSERT_EQ(Start(spec, "checkpoint.after_verify=crash@1")->Wait(), -SIGKILL);
  const std::vector<std::string> good = Checkpoints(spec);
  ASSERT_FALSE(good.empty());

  spec.job = Diverging("explodes", 60);
  spec.epoch = 2;
  const FailedMessage failed = Fail(spec, kExitUserError);
  EXPECT_TRUE(failed.numerics);
  EXPECT_THAT(failed.message, HasSubstr("the training diverged"));
  EXPECT_THAT(failed.message, HasSubstr("hint: lower optimizer.learning_rate"));
  EXPECT_LT(Losses(spec).size(), 40u) << "it does not go on to the end";
  EXPECT_EQ(Checkpoints(spec), good);

  // So the user can mend the job and go on.
  spec.job = sound;
  spec.epoch = 3;
  EXPECT_EQ(Start(spec)->Wait(), kExitDone);
}

TEST_F(TrainerFailuresTest, ARunThatEndsInDivergenceHasNotSucceeded) {
  for (const auto& [how, message] :
       {std::pair("explodes", "the updates of 9 steps in a row up to step 10 were dropped"),
        std::pair("divides by zero", "weights are not finite after step 2")}) {
    AttemptSpec spec = Spec(std::string(how).substr(0, 3));
    spec.job = Diverging(how, 10);
    spec.job.train.guard.skips_before_rollback = 100;
    const FailedMessage failed = Fail(spec, kExitUserError);
    EXPECT_TRUE(failed.numerics);
    EXPECT_THAT(failed.message, HasSubstr(message));
    EXPECT_FALSE(env_.FileExists(spec.run_dir + "/summary.json"));
    EXPECT_TRUE(Checkpoints(spec).empty());
  }
}

TEST_F(TrainerFailuresTest, ALinkThatLeadsOutOfTheDeclaredFoldersEndsTheJob) {
  AttemptSpec spec = Spec("links");
  const std::string data = root_ + "/data";
  std::filesystem::create_directories(data);
  std::filesystem::copy(root_ + "/text.txt", data + "/a.txt");
  std::filesystem::create_symlink(data + "/a.txt", data + "/b.txt");
  spec.job.data.train = {data};
  spec.data_roots = {data};
  EXPECT_EQ(Start(spec)->Wait(), kExitDone) << "links within, and its own folders, are read";

  std::filesystem::create_symlink(root_ + "/text.txt", data + "/c.txt");
  spec = Spec("outside");
  spec.job.data.train = {data};
  spec.data_roots = {data};
  const FailedMessage failed = Fail(spec, kExitUserError);
  EXPECT_THAT(failed.message, HasSubstr(data + "/c.txt leads out of the folders"));
  EXPECT_THAT(failed.message, HasSubstr("--data-root of this weft-worker"));
}

TEST_F(TrainerFailuresTest, WhoeverExceedsTheMemoryLimitSaysForWhat) {
  std::set<std::string> components;
  bool trained = false;
  for (int64_t limit = 20'000; !trained; limit += limit / 2) {
    ASSERT_LT(limit, int64_t{1} << 30) << "never enough";
    AttemptSpec spec = Spec("limit-" + std::to_string(limit));
    spec.job.resources.memory_per_rank_bytes = limit;
    spec.plan.prediction.memory_per_rank.optimizer_bytes = int64_t{1} << 30;
    auto rank = Start(spec, "", true);
    std::optional<FailedMessage> failed;
    std::string told;
    while (std::optional<RankMessage> message = rank->Next()) {
      if (auto* event = std::get_if<EventMessage>(&*message)) told += event->text + "\n";
      if (auto* failure = std::get_if<FailedMessage>(&*message)) failed = *failure;
    }
    const int end = rank->Wait();
    for (const std::string& name : Checkpoints(spec)) {
      const std::string path = engine::CheckpointsFolder(spec.run_dir) + "/" + name;
      EXPECT_TRUE(engine::VerifyCheckpoint(env_, path).ok()) << path;
    }
    trained = end == kExitDone;
    if (trained) {
      EXPECT_FALSE(failed.has_value());
      break;
    }
    EXPECT_EQ(end, kExitRetry);
    EXPECT_THAT(told, ContainsRegex("memory of this rank: the plan expected 1.0 GiB "
                                    "\\(optimizer 1.0 GiB\\); it held at most, part by part, "
                                    ".*; resources.memory_per_rank_bytes allows "));
    ASSERT_TRUE(failed.has_value()) << "with a limit of " << limit;
    EXPECT_EQ(failed->code, "EXHAUSTED");
    EXPECT_THAT(failed->message, HasSubstr("the limit of " + std::to_string(limit) + " bytes"));
    const size_t at = failed->message.find(" bytes for ");
    ASSERT_NE(at, std::string::npos) << failed->message;
    components.insert(
        failed->message.substr(at + 11, failed->message.find(' ', at + 11) - at - 11));
  }
  EXPECT_THAT(components, testing::IsSupersetOf({"parameters", "gradients", "optimizer"}));
}

TEST_F(TrainerFailuresTest, PlansOfWhatDoesNotGoTogetherAreRefused) {
  const std::pair<std::function<void(AttemptSpec&)>, const char*> cases[] = {
      {[](AttemptSpec& spec) {
         spec.job.model.over_parameterization.kind = "linear_expansion";
         spec.plan.zero_stage = 3;
       },
       "model.over_parameterization linear_expansion does not go with resources.zero_stage 3"},
      {[](AttemptSpec& spec) {
         spec.plan.precision = "fp8";
         spec.plan.zero_stage = 3;
       },
       "train.precision fp8 does not go with resources.zero_stage 3"},
      {[](AttemptSpec& spec) {
         spec.plan.mesh = {.pipeline = 2};
         spec.plan.zero_stage = 2;
       },
       "resources.pipeline_parallel 2 does not go with resources.zero_stage 2"},
      {[](AttemptSpec& spec) {
         spec.plan.mesh = {.tensor = 2};
         spec.plan.tensor_rows = 2;
         spec.job.model.dropout = 0;
         spec.plan.precision = "fp8";
       },
       "train.precision fp8 does not go with resources.tensor_rows 2"},
  };
  for (const auto& [change, reason] : cases) {
    AttemptSpec spec = Spec("refused");
    spec.world_size = spec.plan.mesh.data = 2;
    change(spec);
    const FailedMessage failed = Fail(spec, kExitUserError);
    EXPECT_EQ(failed.code, "INVALID");
    EXPECT_THAT(failed.message, HasSubstr(std::string("the plan: ") + reason));
  }
}

TEST_F(TrainerFailuresTest, WithoutMemoryOfTheSystemARankSaysSo) {
  AttemptSpec spec = Spec("large");  // 10 GB of parameters
  spec.job.model.layers = 50;
  spec.job.model.width = 2048;
  spec.job.model.heads = 16;
  const FailedMessage failed = Fail(spec, kExitRetry, rlim_t{2} << 30);
  EXPECT_EQ(failed.code, "EXHAUSTED");
  EXPECT_THAT(failed.message, HasSubstr("bytes for parameters"));
  EXPECT_THAT(failed.message, HasSubstr("the limit of what the system has"));
  EXPECT_TRUE(Checkpoints(spec).empty());
}

}  // namespace
}  // namespace weft::trainer
