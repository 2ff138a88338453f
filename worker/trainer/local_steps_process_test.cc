// Ranks that make local steps, as processes: killed, resumed together, alone and with others, and
// with bad data on one of them.
#include "worker/trainer/testing/trainer_process.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

namespace weft::trainer {
namespace {

using testing::HasSubstr;

class LocalStepsProcessTest : public TrainerProcessTest {
 protected:
  /// Rounds of 3 of 12 steps; saved after steps 6, 9 (every 4 steps) and 12.
  AttemptSpec LocalSpec(const std::string& run, int64_t workers, int64_t context_ranks = 1) const {
    AttemptSpec spec = Spec(run);
    spec.plan.mesh.context = spec.job.resources.context_parallel = context_ranks;
    if (context_ranks > 1) spec.job.model.dropout = spec.job.model.attention_dropout = 0;
    spec.job.train.local_steps = 3;
    spec.job.train.precision = spec.plan.precision = "bf16_pure";
    Join(spec, workers);
    return spec;
  }
  static void Join(AttemptSpec& spec, int64_t workers) {
    spec.plan.mesh.data = workers;
    spec.world_size = spec.job.resources.ranks = workers * spec.plan.mesh.context;
    spec.plan.micro_batch = 1;
    spec.plan.accumulation_steps = spec.job.train.global_batch / workers;
  }

  /// Exit codes by rank; `failpoints` are those of the last one.
  std::vector<int> Run(AttemptSpec spec, const std::string& failpoints = "") {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < spec.world_size; ++spec.rank) {
      ranks.push_back(Start(spec, spec.rank + 1 == spec.world_size ? failpoints : ""));
    }
    std::vector<int> exit_codes;
    for (const auto& rank : ranks) exit_codes.push_back(rank->Wait());
    return exit_codes;
  }
  /// Rank 0 dies as soon as the checkpoint of step 6 is there, and the others with it.
  void RunToStep6(AttemptSpec spec) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < spec.world_size; ++spec.rank) {
      ranks.push_back(Start(spec, std::string("trainer.before_step=sleep:20") +
                                      (spec.rank == 0 ? ",checkpoint.after_verify=crash@1" : "")));
    }
    EXPECT_EQ(ranks[0]->Wait(), -SIGKILL);
  }

  /// What all workers have saved at the end.
  std::vector<std::string> States(const AttemptSpec& spec) {
    std::vector<std::string> states;
    const int64_t workers = spec.plan.mesh.data;
    for (int64_t worker = 0; worker < workers; ++worker) {
      const std::string number = "0000" + std::to_string(worker);
      states.push_back(*ReadFile(env_, engine::CheckpointPath(spec.run_dir, spec.job.train.steps) +
                                           "/state-" + number + "-of-0000" +
                                           std::to_string(workers) + ".safetensors"));
    }
    return states;
  }
};

TEST_F(LocalStepsProcessTest, KilledRanksResumeToTheSameBits) {
  for (const int64_t context_ranks : {1, 2}) {
    SCOPED_TRACE(context_ranks);
    const std::string name = std::to_string(context_ranks);
    const AttemptSpec undisturbed = LocalSpec("undisturbed" + name, 2, context_ranks);
    const std::vector<int> done(static_cast<size_t>(undisturbed.world_size), kExitDone);
    ASSERT_EQ(Run(undisturbed), done);
    const std::vector<double> losses = Losses(undisturbed);
    ASSERT_EQ(losses.size(), 12u);
    EXPECT_LT(losses.back(), losses.front()) << "it learns";
    EXPECT_THAT(Checkpoints(undisturbed), testing::Not(testing::Contains(HasSubstr("00000004"))))
        << "saved after outer steps alone";

    AttemptSpec spec = LocalSpec("killed" + name, 2, context_ranks);
    RunToStep6(spec);
    spec.epoch = 2;
    ASSERT_EQ(Run(spec), done);
    EXPECT_EQ(Curve(spec), Curve(undisturbed));
    EXPECT_EQ(States(spec), States(undisturbed));
  }
}

TEST_F(LocalStepsProcessTest, KilledRanksOfSubNetworksResumeToTheSameBits) {
  const auto of = [this](const std::string& name) {
    AttemptSpec spec = LocalSpec(name, 2);
    spec.job.train.local_sub_networks = true;
    return spec;
  };
  const AttemptSpec undisturbed = of("undisturbed_sub_networks");
  const std::vector<int> done(2, kExitDone);
  ASSERT_EQ(Run(undisturbed), done);
  const std::vector<double> losses = Losses(undisturbed);
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_LT(losses.back(), losses.front()) << "it learns";
  AttemptSpec spec = of("killed_sub_networks");
  RunToStep6(spec);
  spec.epoch = 2;
  ASSERT_EQ(Run(spec), done);
  EXPECT_EQ(Curve(spec), Curve(undisturbed));
  EXPECT_EQ(States(spec), States(undisturbed));
}

TEST_F(LocalStepsProcessTest, ARankThatDiesAmidARoundIsNoticedByTheOthers) {
  AttemptSpec spec = LocalSpec("noticed", 2);
  spec.job.checkpoint.every_steps = 0;
  EXPECT_EQ(Run(spec, "trainer.before_step=crash@5"), (std::vector<int>{kExitRetry, -SIGKILL}));
}

TEST_F(LocalStepsProcessTest, OtherNumbersOfRanksGoOnFromTheOuterStep) {
  for (const auto& [before, after, sub_networks] : {std::tuple<int64_t, int64_t, bool>{2, 1, false},
                                                    {2, 4, false},
                                                    {1, 2, false},
                                                    {2, 1, true},
                                                    {1, 2, true}}) {
    const std::string name = std::to_string(before) + "to" + std::to_string(after) +
                             (sub_networks ? "_sub_networks" : "");
    SCOPED_TRACE(name);
    AttemptSpec spec = LocalSpec(name, before);
    spec.job.train.local_sub_networks = sub_networks;
    RunToStep6(spec);
    spec.epoch = 2;
    Join(spec, after);
    ASSERT_EQ(Run(spec), std::vector<int>(static_cast<size_t>(after), kExitDone));
    const std::vector<double> losses = Losses(spec);
    ASSERT_EQ(losses.size(), 12u);
    EXPECT_LT(losses.back(), losses.front());
    const Json summary = *ParseJson(*ReadFile(env_, spec.run_dir + "/summary.json"));
    EXPECT_EQ(summary["resumed_from_step"], 6);
    EXPECT_EQ(summary["tokens"], 12 * 4 * 16) << "every step had its batch";
  }
}

TEST_F(LocalStepsProcessTest, ARankThatDropsAllItsUpdatesTakesAllBackAndThenEndsTheJob) {
  AttemptSpec spec = LocalSpec("bad", 2);
  spec.job.train.steps = 60;
  spec.job.train.guard.skips_before_rollback = 2;
  spec.job.train.guard.max_rollbacks = 1;
  EXPECT_EQ(Run(spec, "trainer.loss=error"), (std::vector<int>{kExitUserError, kExitUserError}));
  // Some of its updates dropped: the others go on, and so does it.
  AttemptSpec some = LocalSpec("some", 2);
  EXPECT_EQ(Run(some, "trainer.loss=error@2"), (std::vector<int>{kExitDone, kExitDone}));
  const Json summary = *ParseJson(*ReadFile(env_, some.run_dir + "/summary.json"));
  EXPECT_EQ(summary["skipped_steps"], 1) << "rank 0, too, knows of it";
}

}  // namespace
}  // namespace weft::trainer
