#include "common/spec/phases.h"

#include <functional>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "common/spec/spec_json.h"
#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PhaseSpec Phase(int64_t steps, const std::string& method = "none") {
  PhaseSpec phase;
  phase.steps = steps;
  phase.growth.method = method;
  return phase;
}

/// Large, half in all sizes, and large again.
JobSpec VCycle() {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(300, "coalesce"), Phase(200, "decoalesce")};
  job.phases[1].layers = 3;
  job.phases[1].width = 192;
  return job;
}

/// Few blocks, then all.
JobSpec Stack(int64_t layers) {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(200, "stack")};
  job.phases[0].layers = layers;
  return job;
}

std::string Error(JobSpec job, const std::function<void(JobSpec&)>& change) {
  change(job);
  const Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

TEST(Phases, AJobWithoutPhasesIsItsOnlyOne) {
  const JobSpec job = GoodJob();
  EXPECT_EQ(PhaseCount(job), 1u);
  EXPECT_EQ(JobOfPhase(job, 0).model.width, job.model.width);
}

TEST(Phases, HaveTheSizesTheyNameAndKeepProportions) {
  JobSpec job = VCycle();
  job.phases[1].learning_rate = 2e-3;
  job.phases[1].warmup_steps = 0;
  job.phases[1].schedule = "constant";
  job.phases[1].global_batch = 64;
  job.phases[1].sequence_length = 128;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  const JobSpec small = JobOfPhase(job, 1);
  EXPECT_TRUE(small.phases.empty());
  EXPECT_EQ(small.model.layers, 3);
  EXPECT_EQ(small.model.heads, 3);
  EXPECT_EQ(HeadWidth(small.model), HeadWidth(job.model));
  EXPECT_EQ(MlpWidth(small.model), MlpWidth(job.model) / 2);
  EXPECT_EQ(small.train.steps, 300);
  EXPECT_EQ(small.train.global_batch, 64);
  EXPECT_EQ(small.train.sequence_length, 128);
  EXPECT_EQ(small.optimizer.learning_rate, 2e-3);
  EXPECT_EQ(small.schedule.warmup_steps, 0);
  EXPECT_EQ(small.schedule.kind, "constant");
  const JobSpec last = JobOfPhase(job, 2);
  EXPECT_EQ(last.model.layers, job.model.layers);
  EXPECT_EQ(last.optimizer.learning_rate, job.optimizer.learning_rate);
  EXPECT_EQ(last.schedule.warmup_steps, 10);
  EXPECT_EQ(MixedPhase(job, 2), 0u);
  EXPECT_EQ(MixedPhase(job, 1), std::nullopt);
  EXPECT_EQ(PhaseTitle(job, 1), "phase 2 of 3");
}

TEST(Phases, TakeTheShareOfKeyAndValueHeads) {
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

TEST(Phases, ErrorsNameThePhaseAndTheField) {
  const JobSpec job = VCycle();
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].width = 200; }),
              HasSubstr("phases[1].width 200 has no whole number of the heads"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].layers = 4; }),
              HasSubstr("phases[1].layers 4 after 6: growth.method coalesce divides all sizes"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[2].width = 192; }),
              HasSubstr("phases[2].width 192 is not model.width 384"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].steps = 5; }),
              HasSubstr("phases[1]: schedule.warmup_steps 10 is more than train.steps 5"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].growth.method = "none"; }),
              HasSubstr("phases[1].layers 3 after 6: growth.method none keeps all sizes"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].growth.method = "stack"; }),
              HasSubstr("no phase before the first one"));
  EXPECT_THAT(Error(job,
                    [](JobSpec& j) {
                      j.phases[1].layers = -1;
                      j.phases[1].width = 0;
                      j.phases[2].growth.method = "none";
                    }),
              HasSubstr("phases[1].growth.method coalesce changes no size"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[1].heads = 6; }),
              HasSubstr("phases[1].heads 6 makes heads of 32 columns from 64"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases.erase(j.phases.begin()); }),
              HasSubstr("phases[0].growth.method coalesce"));
  EXPECT_THAT(Error(job,
                    [](JobSpec& j) {
                      j.phases.erase(j.phases.begin());
                      j.phases[0].growth.method = "none";
                    }),
              HasSubstr("phases[1].growth.method decoalesce: no phase before it had these sizes"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[2].growth.method = "stack"; }),
              HasSubstr("phases[2].width 384 after 192: growth.method stack adds blocks"));
}

TEST(Phases, OfOneModelNeedNoGrowth) {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(100)};
  job.phases[0].sequence_length = 64;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(Phases, SparklingWidensAndKeepsTheStateOfWhatWasThere) {
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

TEST(Phases, StackFromAnyNumberOfBlocks) {
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

TEST(Phases, MayTrainAddedBlocksAlone) {
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

TEST(Phases, OfNoBlocksGrowRandomOnes) {
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

TEST(Phases, WithMasksSayWhatTheyGrewFrom) {
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

TEST(Phases, TheShareOfGrowthRisesLinearlyToOne) {
  GrowthSpec growth;
  growth.ramp_steps = 4;
  EXPECT_EQ(ShareOfGrowth(growth, 0), 0);
  EXPECT_EQ(ShareOfGrowth(growth, 1), 0.25);
  EXPECT_EQ(ShareOfGrowth(growth, 4), 1);
  EXPECT_EQ(ShareOfGrowth(growth, 5), 1);
}

TEST(Phases, UpdatesOfWhatWasAddedRiseToThePeakAndReturn) {
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

TEST(Phases, ThatWarmUpWhatWasAddedSayWhatTheyGrewFrom) {
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

TEST(Phases, ThatWarmUpWhatWasAddedRefuseWhatHasNoSuchUpdates) {
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

TEST(Phases, AddedBlocksAreThoseThatNoneWasBefore) {
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

TEST(Phases, WithMasksRefuseWhatTheyCannotHide) {
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

TEST(Phases, OfAnImportedNetworkGrowOutOfItsSizes) {
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

TEST(Phases, RefuseHeadsThatShareKeysInNoGroups) {
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

TEST(Phases, RefuseWhatGrowthDoesNotKnow) {
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

TEST(Phases, RefuseWhatTheJobOfNoPhaseShows) {
  for (const JobSpec& job : {Stack(3), VCycle(), Masked()}) {
    EXPECT_THAT(Error(job,
                      [](JobSpec& j) {
                        j.model.untied_classifier = true;
                        j.train.value_learning.base.import_path = "/base";
                      }),
                HasSubstr("train.value_learning.base.import_path /base does not go with phases"));
    EXPECT_THAT(Error(job,
                      [](JobSpec& j) {
                        j.train.sparsity.method = "slope";
                        j.train.sparsity.adapter_rank = 4;
                      }),
                HasSubstr("train.sparsity.adapter_rank 4 does not go with phases"));
  }
}

TEST(Phases, OfImagesOfSeveralSizes) {
  JobSpec job = GoodJob();
  job.model.family = "vit";
  job.model.image_size = 32;
  job.model.patch_size = 8;
  job.data.train = {"train-images-idx3-ubyte"};
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(200, "stack"), Phase(100)};
  job.phases[0].image_size = 16;
  job.phases[0].layers = 2;
  job.phases[1].image_size = 24;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(SequenceLength(JobOfPhase(job, 0)), 2 * 2 + 1);
  EXPECT_EQ(SequenceLength(JobOfPhase(job, 2)), 4 * 4 + 1);
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].image_size = 20; }),
              HasSubstr("phases[0]: model.image_size 20"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[2].image_size = 24; }),
              HasSubstr("phases[2].image_size 24 is not model.image_size 32"));
  EXPECT_THAT(Error(Stack(3), [](JobSpec& j) { j.phases[0].image_size = 16; }),
              HasSubstr("phases[0].image_size is for model.family vit"));
}

TEST(Phases, SampleLayersOfTheirOwnBlocks) {
  JobSpec job = Stack(2);
  job.train.sampled_layers = 6;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 0).train.sampled_layers, 6);
  job.phases[0].sampled_layers = 4;
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 0).train.sampled_layers, 4);
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.phases[0].sampled_layers = 5; }),
              HasSubstr("phases[0]: train.sampled_layers 5 must be a multiple"));
}

TEST(Phases, LearnedGrowthGoesWithWhatRanksShare) {
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
TEST(Phases, TheJobOfALearnedGrowthSaysWhatItGrewFrom) {
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

TEST(Phases, ArePlannedWithoutPlacesThatTheyRefuse) {
  JobSpec job = Stack(3);
  ResourceSpec& asked = job.resources;
  asked.offload_optimizer = asked.offload_activations = "auto";
  asked.offload_directory = "/disk";
  asked.host_link_bytes_per_second = 1'000'000;
  for (const size_t phase : {size_t{0}, size_t{1}}) {
    EXPECT_EQ(ToJson(PlannedJobOfPhase(job, phase)), ToJson(JobOfPhase(job, phase)));
  }
  job.phases[0].search = {.steps = 40, .layers = {1, 2, 3}, .image_sizes = {}};
  const JobSpec search = PlannedJobOfPhase(job, 0);
  EXPECT_TRUE(ValidateJob(search).ok()) << ValidateJob(search).message();
  EXPECT_EQ(search.resources.offload_optimizer, "none");
  EXPECT_EQ(search.resources.offload_activations, "none");
  EXPECT_EQ(search.resources.offload_directory, "");
  EXPECT_EQ(search.resources.host_link_bytes_per_second, 0);
}

TEST(Phases, AveragedBlocksWantAverages) {
  JobSpec job = Stack(3);
  job.phases[1].growth.new_blocks = "averaged";
  EXPECT_THAT(Error(job, [](JobSpec&) {}),
              HasSubstr("averaged weights of the phase before, and there are none"));
  job.train.averaging.kind = "ema";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(Phases, AWarmUpOfTheBatchIsOfTheFirstOne) {
  JobSpec job = Stack(3);
  job.train.batch_warmup_start = 8;
  job.train.batch_warmup_steps = 10;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_EQ(JobOfPhase(job, 0).train.batch_warmup_steps, 10);
  EXPECT_EQ(JobOfPhase(job, 1).train.batch_warmup_steps, 0);
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.train.batch_warmup_steps = 101; }),
              HasSubstr("phases[0]: train.batch_warmup_steps"));
}

TEST(Phases, TheDefaultWarmupFitsTheShortestPhaseWithoutItsOwn) {
  JobSpec job = VCycle();
  job.schedule.warmup_steps = 100;
  job.phases[0].steps = 20;
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 2);
  job.schedule.warmup_steps = 100;
  job.phases[0].warmup_steps = 20;
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 20);
}

TEST(Phases, GoOnWithOneScheduleWhereTheySaySo) {
  JobSpec job = VCycle();
  job.schedule = {.kind = "warmup_stable_decay", .warmup_steps = 150, .decay_steps = 250};
  for (PhaseSpec& phase : job.phases) phase.schedule = "continued";
  job.phases[1].learning_rate = 4 * job.optimizer.learning_rate;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  const int64_t before[] = {0, 100, 400}, after[] = {500, 200, 0};
  for (size_t i = 0; i < 3; ++i) {
    // As the order of an attempt has it, too.
    for (const JobSpec& own : {JobOfPhase(job, i), JobOfPhase(JobThrough(job, i), i)}) {
      EXPECT_EQ(own.schedule.kind, "warmup_stable_decay");
      EXPECT_EQ(own.schedule.steps_before, before[i]);
      EXPECT_EQ(own.schedule.steps_after, after[i]);
      EXPECT_EQ(own.schedule.warmup_steps, 150) << "longer than the first phase";
      EXPECT_EQ(own.schedule.decay_steps, 250) << "longer than the last phase";
      EXPECT_EQ(own.optimizer.learning_rate, job.optimizer.learning_rate * (i == 1 ? 4 : 1));
    }
  }
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.schedule.warmup_steps = 601; }),
              HasSubstr("schedule.warmup_steps 601 is more than the 600 steps of the schedule"));
  EXPECT_THAT(Error(job, [](JobSpec& j) { j.schedule.decay_steps = 451; }),
              HasSubstr("schedule.decay_steps 451 is more than the 600 steps of the schedule "
                        "less schedule.warmup_steps 150"));
  // Others have one of their own, which ends with them.
  job.schedule = {.kind = "linear", .warmup_steps = 10};
  job.phases[1].schedule = "cosine";
  job.phases[0].schedule = "";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  for (const size_t own : {0, 1}) {
    EXPECT_EQ(JobOfPhase(job, own).schedule.steps_before, 0);
    EXPECT_EQ(JobOfPhase(job, own).schedule.steps_after, 0);
  }
  EXPECT_EQ(JobOfPhase(job, 1).schedule.kind, "cosine");
  EXPECT_EQ(JobOfPhase(job, 2).schedule.kind, "linear");
  EXPECT_EQ(JobOfPhase(job, 2).schedule.steps_before, 400);
}

TEST(Phases, OfOneScheduleHaveNoWarmUpOfTheirOwn) {
  JobSpec job = Stack(3);
  job.phases[1].schedule = "continued";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  EXPECT_THAT(
      Error(job, [](JobSpec& j) { j.phases[1].warmup_steps = 0; }),
      HasSubstr("phases[1].warmup_steps 0 is for a schedule of the phase's own, and "
                "phases[1].schedule continued is its part of that of the job; hint: leave it out"));
  for (const auto field : {&ScheduleSpec::steps_before, &ScheduleSpec::steps_after}) {
    EXPECT_THAT(Error(job, [&](JobSpec& j) { j.schedule.*field = 1; }),
                HasSubstr("schedule.steps_before and schedule.steps_after are for a job without "
                          "phases"));
  }
}

TEST(Phases, OfOneScheduleGetItsDefaultWarmup) {
  JobSpec job = VCycle();
  job.schedule.warmup_steps = 100;
  job.phases[0].steps = 20;
  for (PhaseSpec& phase : job.phases) phase.schedule = "continued";
  EXPECT_TRUE(FitDefaultWarmup(job));
  EXPECT_EQ(job.schedule.warmup_steps, 52) << "a tenth of all 520 steps";
}

TEST(Phases, AnOrderSaysByItsStepsWhichPhaseIsToRun) {
  const JobSpec job = VCycle();
  const int64_t ends[] = {100, 400, 600};
  for (size_t phase = 0; phase < 3; ++phase) {
    const JobSpec order = JobThrough(job, phase);
    EXPECT_EQ(order.train.steps, ends[phase]);
    EXPECT_EQ(order.phases, job.phases);
    EXPECT_EQ(*PhaseToRun(order), phase);
  }
  EXPECT_EQ(StepsBefore(job, 0), 0);
  EXPECT_EQ(StepsBefore(job, 3), 600);
  JobSpec broken = job;
  broken.train.steps = 101;
  EXPECT_THAT(PhaseToRun(broken).status().message(), HasSubstr("no phase of job"));
  const JobSpec plain = GoodJob();
  EXPECT_EQ(JobThrough(plain, 0).train.steps, plain.train.steps);
  EXPECT_EQ(*PhaseToRun(plain), 0u);
}

TEST(Phases, TheLastOneHasTheRunFolder) {
  EXPECT_EQ(PhaseFolder(VCycle(), 0, "/runs/a"), "/runs/a/phase-1");
  EXPECT_EQ(PhaseFolder(VCycle(), 1, "/runs/a"), "/runs/a/phase-2");
  EXPECT_EQ(PhaseFolder(VCycle(), 2, "/runs/a"), "/runs/a");
  EXPECT_EQ(PhaseFolder(GoodJob(), 0, "/runs/a"), "/runs/a");
  EXPECT_TRUE(IsPhaseFolder("phase-12"));
  for (const char* name : {"phase-", "phase-1a", "phase", "my-phase-1"}) {
    EXPECT_FALSE(IsPhaseFolder(name)) << name;
  }
}

TEST(Phases, StepsOfSmallModelsCostLess) {
  const JobSpec job = VCycle();
  const double large = StepFlops(JobOfPhase(job, 0)), small = StepFlops(JobOfPhase(job, 1));
  EXPECT_GT(large, 2 * small);
  EXPECT_GT(small, 0);
  JobSpec longer = job;
  longer.train.global_batch *= 3;
  EXPECT_DOUBLE_EQ(StepFlops(JobOfPhase(longer, 1)), 3 * small);
}

}  // namespace
}  // namespace weft
