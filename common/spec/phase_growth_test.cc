#include "common/spec/phases.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "common/spec/phase_testing.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

using phases::Error;
using phases::Phase;
using phases::Stack;
using phases::VCycle;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(GrowingPhases, TakeTheShareOfKeyAndValueHeads) {
  JobSpec job = VCycle();
  job.model.family = "llama";
  job.model.kv_heads = 2;
  job.model.heads = 4;
  job.model.mlp_width = 512;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 1).model.kv_heads, 1);
  EXPECT_EQ(JobOfPhase(job, 1).model.mlp_width, 256);
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.model.kv_heads = 1; }),
              HasSubstr("phases[1].kv_heads must be given"));
  // All queries share one head of keys and values before and after.
  job.model.kv_heads = 1;
  job.phases[1].kv_heads = 1;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_THAT(Error(job,
                    [](JobSpec& j) {
                      j.model.kv_heads = 2;
                      j.phases[1].kv_heads = 2;
                    }),
              HasSubstr("phases[1].kv_heads does not suit growth"));
}

TEST(GrowingPhases, SparklingWidensAndKeepsTheStateOfWhatWasThere) {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(200, "sparkling")};
  job.phases[0].width = job.model.width / 2;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(OptimizerStateOf(job.phases[1].growth), "asymmetric");
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].layers = 3; }),
              HasSubstr("growth.method sparkling adds columns and leaves the blocks"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].width = 0; }),
              HasSubstr("changes no size of the phase before it"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.optimizer.name = "adafactor"; }),
              HasSubstr("growth.optimizer_state asymmetric does not go with optimizer.name"));
  const auto averaged = [](JobSpec& j) { j.train.averaging.kind = "ema"; };
  EXPECT_THAT(
      Error(job, averaged),
      HasSubstr("train.averaging ema does not go with phases[].growth.optimizer_state asymmetric"));
  job.phases[1].growth.optimizer_state = "new";
  averaged(job);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(GrowingPhases, StackFromAnyNumberOfBlocks) {
  for (const int64_t layers : {1, 2, 4}) {
    EXPECT_TRUE(ValidateJob(Stack(layers)).ok()) << ValidateJob(Stack(layers)).message();
  }
  EXPECT_THAT(Error(Stack(6), [](JobSpec&) {}), HasSubstr("changes no size"));
  EXPECT_THAT(
      Error(Stack(3),
            [](JobSpec& j) {
              j.model.family = "bert";
              j.phases[1].growth.new_blocks = "identity";
            }),
      HasSubstr(
          "phases[1]: phases[].growth.new_blocks identity does not go with model.norm_position "
          "post"));
}

TEST(GrowingPhases, MayTrainAddedBlocksAlone) {
  JobSpec job = Stack(3);
  job.phases[1].growth.freeze_old = true;
  job.phases.push_back(Phase(100));
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_THAT(JobOfPhase(job, 0).model.freeze, IsEmpty());
  // Every second one of six blocks is new.
  EXPECT_THAT(JobOfPhase(job, 1).model.freeze,
              ElementsAre("transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.*",
                          "transformer.h.2.*", "transformer.h.4.*", "transformer.ln_f.weight",
                          "transformer.ln_f.bias"));
  EXPECT_THAT(JobOfPhase(job, 2).model.freeze, IsEmpty());
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.optimizer_state = "kept"; }),
              HasSubstr("phases[1]: phases[].growth.freeze_old does not go with phases[].growth."));
  EXPECT_THAT(
      Error(job, [](JobSpec& j) { j.phases[1].growth.method = "fpi"; }),
      HasSubstr(
          "phases[1]: phases[].growth.freeze_old does not go with phases[].growth.method fpi"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[2].growth.optimizer_state = "kept"; }),
              HasSubstr("phases[2].growth.optimizer_state kept is for parameters that"));
  EXPECT_THAT(Error(job,
                    [](JobSpec& j) {
                      j.phases[1].growth.freeze_old = false;
                      j.phases[2].growth.freeze_old = true;
                    }),
              HasSubstr("phases[2].growth.freeze_old would freeze all: no block is added"));
}

TEST(GrowingPhases, OfNoBlocksGrowRandomOnes) {
  JobSpec job = Stack(0);
  job.phases[1].growth.new_blocks = "random";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 0).model.layers, 0);
  EXPECT_EQ(JobOfPhase(job, 1).model.layers, job.model.layers);
  EXPECT_THAT(Error(Stack(0), [](JobSpec&) {}),
              HasSubstr("phases[1].growth.new_blocks copy makes blocks of those of the phase"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.method = "decoalesce"; }),
              HasSubstr("phases[1].layers 6 after 0: growth.method decoalesce"));
  EXPECT_THAT(Error(VCycle(), [](JobSpec& j) { j.phases[1].layers = 0; }),
              HasSubstr("phases[1].layers 0 after 6: growth.method coalesce"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.resources.pipeline_parallel = 2; }),
              HasSubstr("each needs a block"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.model.family = "bert"; }),
              HasSubstr("model.layers 0 does not go with model.family bert"));
}

/// Half of the width, then all of it with masks.
JobSpec Masked() {
  JobSpec job = VCycle();
  job.phases = {Phase(100), Phase(200, "msg")};
  job.phases[0].width = 192;
  job.phases[1].growth.ramp_steps = 50;
  return job;
}

TEST(GrowingPhases, WithMasksSayWhatTheyGrewFrom) {
  JobSpec job = Masked();
  job.phases[0].layers = 2;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_FALSE(MaskedGrowthOf(job));
  EXPECT_FALSE(MaskedGrowthOf(JobOfPhase(job, 0)));
  const JobSpec last = JobOfPhase(job, 1);
  const auto growth = MaskedGrowthOf(last);
  ASSERT_TRUE(growth);
  EXPECT_EQ(growth->before.layers, 2);
  EXPECT_EQ(growth->before.width, 192);
  EXPECT_EQ(growth->before.heads, job.model.heads / 2);
  EXPECT_EQ(MlpWidth(growth->before), MlpWidth(job.model) / 2);
  EXPECT_EQ(growth->growth, job.phases[1].growth);
  EXPECT_EQ(last.model.width, job.model.width);
  EXPECT_EQ(last.train.steps, 200);
  EXPECT_TRUE(ValidateJob(last).ok()) << ValidateJob(last).message();
  EXPECT_TRUE(CheckOnePhase(last).ok());
  EXPECT_EQ(JobOfPhase(last, 0).model.width, job.model.width) << "it is its own only phase";
}

TEST(GrowingPhases, TheShareOfGrowthRisesLinearlyToOne) {
  GrowthSpec growth;
  growth.ramp_steps = 4;
  EXPECT_EQ(ShareOfGrowth(growth, 0), 0);
  EXPECT_EQ(ShareOfGrowth(growth, 1), 0.25);
  EXPECT_EQ(ShareOfGrowth(growth, 4), 1);
  EXPECT_EQ(ShareOfGrowth(growth, 5), 1);
}

TEST(GrowingPhases, UpdatesOfWhatWasAddedRiseToThePeakAndReturn) {
  GrowthSpec growth;
  EXPECT_EQ(UpdateOfAdded(growth, 0), 1) << "without it all have the same";
  EXPECT_FALSE(IsRewarming(growth, 0));
  growth.rewarm_steps = 4;
  growth.rewarm_peak = 1.5;
  const double factors[] = {0.375, 0.75, 1.125, 1.5, 1.375, 1.25, 1.125, 1, 1};
  for (int64_t step = 0; step < std::ssize(factors); ++step) {
    EXPECT_DOUBLE_EQ(UpdateOfAdded(growth, step), factors[step]) << step;
    EXPECT_EQ(IsRewarming(growth, step), step < 7) << step;
  }
  growth.rewarm_peak = 1;
  EXPECT_DOUBLE_EQ(UpdateOfAdded(growth, 2), 0.75);
  EXPECT_DOUBLE_EQ(UpdateOfAdded(growth, 3), 1);
  EXPECT_TRUE(IsRewarming(growth, 2));
  EXPECT_FALSE(IsRewarming(growth, 3)) << "there is nothing to return from";
}

JobSpec Rewarmed() {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(200, "sparkling")};
  job.phases[0].width = job.model.width / 2;
  job.phases[0].schedule = job.phases[1].schedule = "continued";
  job.phases[1].growth.rewarm_steps = 50;
  return job;
}

TEST(GrowingPhases, ThatWarmUpWhatWasAddedSayWhatTheyGrewFrom) {
  const JobSpec job = Rewarmed();
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_FALSE(RewarmedGrowthOf(job));
  EXPECT_FALSE(RewarmedGrowthOf(JobOfPhase(job, 0)));
  const JobSpec last = JobOfPhase(job, 1);
  const auto growth = RewarmedGrowthOf(last);
  ASSERT_TRUE(growth);
  EXPECT_EQ(growth->before.width, job.model.width / 2);
  EXPECT_EQ(growth->before.heads, job.model.heads / 2);
  EXPECT_EQ(growth->growth.rewarm_steps, 50);
  EXPECT_EQ(last.schedule.steps_before, 100) << "what was there goes on with the job's schedule";
  EXPECT_FALSE(MaskedGrowthOf(last) || LearnedGrowthOf(last));
  EXPECT_TRUE(ValidateJob(last).ok()) << ValidateJob(last).message();
  EXPECT_EQ(ToJson(JobOfPhase(last, 0)), ToJson(last)) << "the job of a phase is one of its own";
  JobSpec without = job;
  without.phases[1].growth.rewarm_steps = 0;
  EXPECT_TRUE(JobOfPhase(without, 1).phases.empty());
}

TEST(GrowingPhases, ThatWarmUpWhatWasAddedRefuseWhatHasNoSuchUpdates) {
  const JobSpec job = Rewarmed();
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.rewarm_steps = 201; }),
              HasSubstr("phases[1].growth.rewarm_steps 201 must be no more than the steps of the "
                        "phase, 200"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.method = "fpi"; }),
              HasSubstr("phases[1].growth.rewarm_steps 50 is for growth.method sparkling"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.resources.offload_optimizer = "host"; }),
              HasSubstr("phases[].growth.rewarm_steps 50 does not go with "
                        "resources.offload_optimizer host"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.train.precision = "bf16_pure"; }),
              HasSubstr("phases[].growth.rewarm_steps 50 does not go with train.precision"));
  // A job of one phase that grows from nothing.
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases.erase(j.phases.begin()); }),
              HasSubstr("there is no phase before the first one to grow from"));
  JobSpec muon = job;
  muon.optimizer.name = "muon";
  EXPECT_TRUE(ValidateJob(muon).ok()) << ValidateJob(muon).message();
}

TEST(GrowingPhases, AddedBlocksAreThoseThatNoneWasBefore) {
  const auto added = [](const char* order, int64_t before, int64_t now) {
    GrowthSpec growth;
    growth.depth_order = order;
    std::string which;
    for (int64_t block = 0; block < now; ++block) {
      which += IsAddedBlock(growth, before, now, block) ? '+' : '.';
    }
    return which;
  };
  EXPECT_EQ(added("adjacent", 2, 4), ".+.+");
  EXPECT_EQ(added("stacked", 2, 4), "..++");
  EXPECT_EQ(added("adjacent", 2, 5), ".++.+");
  EXPECT_EQ(added("adjacent", 3, 3), "...");
  EXPECT_EQ(added("adjacent", 0, 2), "++");
  EXPECT_EQ(added("stacked", 0, 2), "++");
}

TEST(GrowingPhases, WithMasksRefuseWhatTheyCannotHide) {
  const JobSpec job = Masked();
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.ramp_steps = 0; }),
              HasSubstr("phases[1].growth.ramp_steps 0 must be from 1 to the steps of the phase"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.ramp_steps = 201; }),
              HasSubstr("phases[1].growth.ramp_steps 201 must be from 1"));
  EXPECT_THAT(Error(VCycle(), [](JobSpec& j) { j.phases[1].growth.ramp_steps = 5; }),
              HasSubstr("phases[1].growth.ramp_steps 5 is for growth.method msg"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].width = 768; }),
              HasSubstr("phases[1].width 384 after 768: growth.method msg makes no size smaller"));
  EXPECT_THAT(Error(job,
                    [](JobSpec& j) {
                      j.model.family = "llama";
                      j.model.heads = 6;
                      j.model.kv_heads = 3;
                      j.phases[0].kv_heads = 1;
                    }),
              HasSubstr("phases[1].kv_heads 3 gives heads that were there before other keys"));
  // A job of one phase that grows from nothing.
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases.erase(j.phases.begin()); }),
              HasSubstr("there is no phase before the first one to grow from"));
  JobSpec post = job;
  post.model.norm_position = "post";
  EXPECT_TRUE(ValidateJob(post).ok()) << "masked columns are not added up by a tied classifier";
}

TEST(GrowingPhases, OfAnImportedNetworkGrowOutOfItsSizes) {
  JobSpec job = Stack(2);
  job.model.import_path = job.data.tokenizer.path = "/a";
  job.model.layers = 3;  // as after reading the folder
  job.model.width = 768;
  job.model.heads = 12;
  job.phases = {Phase(20), Phase(50, "stack"), Phase(90, "fpi")};
  job.phases[1].layers = job.phases[2].layers = 5;
  job.phases[2].width = 1536;
  ASSERT_TRUE(SpreadImportedSizes(job).ok());
  EXPECT_EQ(job.model.layers, 5);
  EXPECT_EQ(job.model.width, 1536);
  EXPECT_EQ(job.model.heads, 24);
  const ModelSpec first = JobOfPhase(job, 0).model, second = JobOfPhase(job, 1).model;
  EXPECT_EQ(first.import_path, "/a");
  EXPECT_EQ(first.layers, 3);
  EXPECT_EQ(first.width, 768);
  EXPECT_EQ(second.import_path, "");
  EXPECT_EQ(second.layers, 5);
  EXPECT_EQ(second.heads, 12);
  EXPECT_EQ(JobOfPhase(job, 2).model.import_path, "");
  const Status valid = ValidateKnownSizes(job);
  EXPECT_TRUE(valid.ok()) << valid.message();
  // Rows that do not wait for the folder.
  JobSpec shared = job;
  shared.model.distinct_blocks = 1;
  EXPECT_THAT(ValidateJob(shared).message(),
              HasSubstr("phases[0]: model.distinct_blocks 1 does not go with model.import_path"));
  // Layers of the folder are not known yet.
  JobSpec sampled = job;
  sampled.phases[0].sampled_layers = 2 * sampled.model.layers;
  sampled.resources.pipeline_parallel = 2;
  const Status unread = ValidateJob(sampled);
  EXPECT_TRUE(unread.ok()) << unread.message();
  // Once more, with the sizes of the folder.
  JobSpec again = job;
  again.model.layers = 3;
  again.model.width = 768;
  again.model.heads = 12;
  ASSERT_TRUE(SpreadImportedSizes(again).ok());
  EXPECT_EQ(ToJson(again), ToJson(job));
  again.phases[0].layers = 4;
  EXPECT_THAT(SpreadImportedSizes(again).message(),
              HasSubstr("phases[0].layers 4 is not that of the network in /a, 5"));
}

TEST(GrowingPhases, RefuseHeadsThatShareKeysInNoGroups) {
  for (const int64_t kv_heads : {5, 7, 12}) {
    EXPECT_THAT(
        Error(VCycle(),
              [&](JobSpec& j) {
                j.model.family = "llama";
                j.phases[1].kv_heads = kv_heads;
              }),
        HasSubstr("phases[1].kv_heads " + std::to_string(kv_heads) + " must divide heads, 3"));
  }
}

TEST(GrowingPhases, RefuseWhatGrowthDoesNotKnow) {
  EXPECT_THAT(
      Error(VCycle(), [](JobSpec& j) { j.model.initialization.method = "mup"; }),
      HasSubstr("phases[1]: phases[].width 192 does not go with model.initialization.method mup"));
  EXPECT_TRUE([] {
    JobSpec job = Stack(2);
    job.model.initialization.method = "mup";
    return ValidateJob(job).ok();
  }());
  EXPECT_THAT(
      Error(VCycle(),
            [](JobSpec& j) {
              j.optimizer.name = "adafactor";
              j.phases[2].growth.optimizer_state = "kept";
            }),
      HasSubstr("phases[2]: phases[].growth.optimizer_state kept does not go with optimizer.name"));
  EXPECT_THAT(
      Error(VCycle(), [](JobSpec& j) { j.phases[2].growth.optimizer_state = "asymmetric"; }),
      HasSubstr("phases[2]: phases[].growth.method decoalesce does not go with phases[].growth."));
  EXPECT_THAT(Error(VCycle(), [](JobSpec& j) { j.model.norm_position = "post"; }),
              HasSubstr("model.untied_classifier"));
  EXPECT_THAT(Error(Stack(3), [](JobSpec& j) { j.model.distinct_blocks = 3; }),
              HasSubstr("phases[1]: phases[].layers 6 does not go with model.distinct_blocks 3"));
  EXPECT_THAT(Error(Stack(3), [](JobSpec& j) { j.model.structured_matrices.kind = "monarch"; }),
              HasSubstr("phases does not go with model.structured_matrices"));
  EXPECT_THAT(
      Error(Stack(3), [](JobSpec& j) { j.model.over_parameterization.kind = "linear_expansion"; }),
      HasSubstr("phases does not go with model.over_parameterization linear_expansion"));
  EXPECT_THAT(Error(Stack(3),
                    [](JobSpec& j) {
                      j.train.sequence_warmup_start = 8;
                      j.train.sequence_warmup_steps = 10;
                    }),
              HasSubstr("train.sequence_warmup_steps 10 does not go with phases"));
}

TEST(GrowingPhases, LearnedGrowthGoesWithWhatRanksShare) {
  JobSpec job = Stack(3);
  job.phases[0].width = 192;
  job.phases[1].growth.method = "ligo";
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_THAT(
      Error(job, [](JobSpec& j) { j.phases[1].growth.new_blocks = "random"; }),
      HasSubstr(
          "phases[1]: phases[].growth.method ligo does not go with phases[].growth.new_blocks "
          "random"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.optimizer_state = "kept"; }),
              HasSubstr("ligo does not go with phases[].growth.optimizer_state kept"));
  for (void (*change)(JobSpec&) : {+[](JobSpec& j) { j.resources.tensor_parallel = 3; },
                                   +[](JobSpec& j) { j.resources.pipeline_parallel = 2; },
                                   +[](JobSpec& j) { j.resources.context_parallel = 2; },
                                   +[](JobSpec& j) { j.resources.zero_stage = 3; },
                                   +[](JobSpec& j) { j.resources.offload_optimizer = "host"; }}) {
    JobSpec shared = job;
    change(shared);
    EXPECT_TRUE(ValidateJob(shared).ok()) << ValidateJob(shared).message();
  }
}

// What learns the operator takes memory, which the plan of the phase counts.
TEST(GrowingPhases, TheJobOfALearnedGrowthSaysWhatItGrewFrom) {
  JobSpec job = Stack(3);
  job.phases[0].width = 192;
  job.phases[1].growth.method = "ligo";
  const JobSpec phase = JobOfPhase(job, 1);
  EXPECT_TRUE(ValidateJob(phase).ok()) << ValidateJob(phase).message();
  const std::optional<PhaseGrowth> growth = LearnedGrowthOf(phase);
  ASSERT_TRUE(growth);
  const ModelSpec before = JobOfPhase(job, 0).model;
  EXPECT_EQ(growth->before.layers, before.layers);
  EXPECT_EQ(growth->before.width, 192);
  EXPECT_EQ(growth->before.heads, before.heads);
  EXPECT_EQ(growth->growth.method, "ligo");
  EXPECT_FALSE(MaskedGrowthOf(phase));
  EXPECT_EQ(ToJson(JobOfPhase(phase, 0)), ToJson(phase));
  EXPECT_TRUE(CheckOnePhase(phase).ok());
  // No phase of a user is the first one and learned.
  job.phases.erase(job.phases.begin());
  EXPECT_THAT(Error(job, [](JobSpec&) {}), HasSubstr("no phase before the first one"));
}

TEST(GrowingPhases, AveragedBlocksWantAverages) {
  JobSpec job = Stack(3);
  job.phases[1].growth.new_blocks = "averaged";
  EXPECT_THAT(Error(job, [](JobSpec&) {}),
              HasSubstr("averaged weights of the phase before, and there are none"));
  job.train.averaging.kind = "ema";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

}  // namespace
}  // namespace weft
