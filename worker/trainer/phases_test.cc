// Jobs whose phases grow out of each other, from text to the last checkpoint.
#include "worker/trainer/phases.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/huggingface.h"
#include "common/json.h"
#include "common/model/model_sizes.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/growth_fit.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/trainer/phases_testing.h"
#include "worker/trainer/run_folder.h"
#include "worker/trainer/trained_weights.h"

namespace weft::trainer {
namespace {

using ::testing::HasSubstr;

TEST_F(PhasesTest, AVCycleTrainsEachLevelInItsFolder) {
  for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
    SCOPED_TRACE(family);
    const std::string name = family;
    const bool images = name == "vit";
    JobSpec job = VCycleOf(family);
    job.phases[0].steps = images ? 60 : 20;
    job.phases[1].steps = images ? 60 : 30;
    if (images) job.train.eval_sequences = 128;  // an image has one label
    const auto outcome = Run(name, job);
    ASSERT_TRUE(outcome.ok() && outcome->summary);
    EXPECT_THAT(events_, HasSubstr("grown by decoalesce"));
    EXPECT_THAT(events_, HasSubstr("the grown weights have validation loss "));
    EXPECT_EQ(Manifest(name + "/phase-1").job.model.width, 32);
    EXPECT_EQ(Manifest(name + "/phase-2").job.model.width, 16);
    EXPECT_EQ(Manifest(name + "/phase-2").job.model.layers, 1);
    EXPECT_EQ(Manifest(name).job.model.width, 32);
    EXPECT_EQ(Manifest(name).job.model.family, name);
    const RunSummary summary = Summary(name);
    EXPECT_EQ(summary.steps, 8);
    ASSERT_EQ(summary.phases.size(), 3u);
    EXPECT_EQ(summary.phases[0].steps, job.phases[0].steps);
    EXPECT_EQ(summary.phases[1].steps, job.phases[1].steps);
    EXPECT_EQ(summary.phases[1].phase, "phase 2 of 3");
    EXPECT_LT(summary.phases[1].parameters, summary.phases[0].parameters);
    EXPECT_LT(summary.phases[1].training_flops / static_cast<double>(summary.phases[1].tokens),
              summary.phases[0].training_flops / static_cast<double>(summary.phases[0].tokens));
    EXPECT_EQ(summary.phases[0].start_validation_loss_nats, std::nullopt);
    // Of what the first phase has learned, compared with random weights, means of blocks and
    // columns keep some, and the mixture with what they have learned most.
    const double random = FreshLoss(name + "-fresh", job);
    const double learned = random - *summary.phases[0].validation_loss_nats;
    EXPECT_GT(learned, images ? 0.05 : 1.0);
    const auto kept = [&](size_t phase) {
      return (random - *summary.phases[phase].start_validation_loss_nats) / learned;
    };
    EXPECT_GT(kept(2), 0.8);
    if (images) continue;  // a vit has to learn again after it was coalesced
    EXPECT_GT(kept(1), 0.2);
    EXPECT_LT(*summary.validation_loss_nats, *summary.phases[0].validation_loss_nats);
  }
}

TEST_F(PhasesTest, ARunThatIsStoppedGoesOnInItsPhaseBitForBit) {
  const JobSpec job = VCycle();
  ASSERT_TRUE(Run("whole", job).ok());
  // In the first phase, twice in the second, in the last.
  for (const int64_t steps : {3, 5, 4, 7}) {
    const auto outcome = Run("stopped", job, steps);
    ASSERT_TRUE(outcome.ok());
    EXPECT_FALSE(outcome->summary) << "after " << steps << " more steps";
  }
  const auto outcome = Run("stopped", job);
  ASSERT_TRUE(outcome.ok() && outcome->summary);
  for (const char* phase : {"/phase-1", "/phase-2", ""}) {
    EXPECT_EQ(Read("stopped" + std::string(phase) + "/loss.jsonl"),
              Read("whole" + std::string(phase) + "/loss.jsonl"));
    EXPECT_EQ(FinalState("stopped" + std::string(phase)), FinalState("whole" + std::string(phase)));
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Summary("stopped").phases[i].start_validation_loss_nats,
              Summary("whole").phases[i].start_validation_loss_nats);
  }
}

TEST_F(PhasesTest, SecondsAreThoseOfAllAttempts) {
  const JobSpec job = Job({Phase(6), Phase(4)});
  const std::string first = Folder("stopped/phase-1"), last = Folder("stopped");
  ASSERT_TRUE(Run("stopped", job, 3).ok());
  const double once = *ReadRunSeconds(Env::Posix(), first);
  EXPECT_GT(once, 0);
  // As if the attempt had taken longer than any test.
  ASSERT_TRUE(SaveRunSeconds(Env::Posix(), first, once + 1e5).ok());
  ASSERT_TRUE(Run("stopped", job, 5).ok());  // in the last phase
  EXPECT_GT(*ReadRunSeconds(Env::Posix(), first), once + 1e5);
  const double in_last = *ReadRunSeconds(Env::Posix(), last);
  ASSERT_TRUE(SaveRunSeconds(Env::Posix(), last, in_last + 2e5).ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  const RunSummary summary = Summary("stopped");
  ASSERT_EQ(summary.phases.size(), 2u);
  EXPECT_NEAR(summary.phases[0].seconds, 1e5, 1e4);
  EXPECT_GT(summary.phases[0].seconds, once + 1e5);
  EXPECT_NEAR(summary.phases[1].seconds, 2e5, 1e4);
  EXPECT_EQ(summary.seconds, summary.phases[1].seconds);
}

TEST_F(PhasesTest, ARunThatIsCompleteIsNotRunAgain) {
  const JobSpec job = VCycle();
  ASSERT_TRUE(Run("twice", job).ok());
  const std::string losses = Read("twice/loss.jsonl");
  ASSERT_TRUE(Run("twice", job).ok());
  EXPECT_EQ(Read("twice/loss.jsonl"), losses);
  EXPECT_EQ(Summary("twice").phases.size(), 3u);
  EXPECT_EQ(Summary("twice").phases[1].steps, 10);
}

TEST_F(PhasesTest, PhasesOfOneModelWithTheStateOfTheOptimizerAreOneTraining) {
  JobSpec parts = Job({Phase(8), Phase(12)});
  parts.phases[1].growth.optimizer_state = "kept";
  JobSpec whole = Job({});
  whole.train.steps = 20;
  ASSERT_TRUE(Run("parts", parts).ok());
  ASSERT_TRUE(Run("whole", whole).ok());
  EXPECT_EQ(Manifest("parts").updates, 20);
  EXPECT_EQ(Manifest("parts").data_offset, 8);
  EXPECT_EQ(FinalState("parts"), FinalState("whole"));
}

TEST_F(PhasesTest, OneScheduleRunsOnThroughPhasesAndStops) {
  JobSpec parts = Job({Phase(8), Phase(12)});
  for (PhaseSpec& phase : parts.phases) phase.schedule = "continued";
  parts.phases[1].growth.optimizer_state = "kept";
  for (const char* kind : {"cosine", "linear", "warmup_stable_decay"}) {
    SCOPED_TRACE(kind);
    // The warm-up ends in the second phase.
    parts.schedule = {.kind = kind, .warmup_steps = 10, .final_ratio = 0.1, .decay_steps = 6};
    JobSpec whole = parts;
    whole.phases.clear();
    whole.train.steps = 20;
    const std::string name = kind;
    ASSERT_TRUE(Run(name + "-whole", whole).ok());
    ASSERT_TRUE(Run(name, parts).ok());
    const std::string stopped = name + "-stopped";
    for (const int64_t steps : {5, 6}) {  // in the first phase, in the second one
      const auto outcome = Run(stopped, parts, steps);
      ASSERT_TRUE(outcome.ok());
      EXPECT_FALSE(outcome->summary);
    }
    ASSERT_TRUE(Run(stopped, parts).ok());

    const std::vector<Json> line = Curve(name + "-whole");
    ASSERT_EQ(line.size(), 20u);
    EXPECT_NEAR(line[9]["learning_rate"].get<double>(), 3e-3, 1e-12);
    EXPECT_NEAR(line[19]["learning_rate"].get<double>(), 3e-4, 1e-12);
    for (const std::string& run : {name, stopped}) {
      std::vector<Json> both = Curve(run + "/phase-1");
      ASSERT_EQ(both.size(), 8u);
      const std::vector<Json> last = Curve(run);
      both.insert(both.end(), last.begin(), last.end());
      ASSERT_EQ(both.size(), line.size());
      for (size_t i = 0; i < line.size(); ++i) {
        EXPECT_EQ(both[i]["learning_rate"], line[i]["learning_rate"]) << run << ", step " << i;
        EXPECT_EQ(both[i]["loss"], line[i]["loss"]) << run << ", step " << i;
      }
      EXPECT_EQ(FinalState(run), FinalState(name + "-whole"));
    }
  }
}

TEST_F(PhasesTest, ALargerBatchGoesOnWhereTheDataWereLeft) {
  JobSpec job = Job({Phase(3), Phase(2), Phase(2)});
  job.phases[1].global_batch = 8;
  job.phases[2].global_batch = 8;
  job.phases[2].sequence_length = 8;
  ASSERT_TRUE(Run("batches", job).ok());
  // 12 sequences of 16 tokens were read, then 16 more after the 4 that end a batch of 8.
  EXPECT_EQ(Manifest("batches/phase-2").data_offset, 2);
  EXPECT_EQ(Manifest("batches").data_offset, 8);
}

TEST_F(PhasesTest, AWarmUpOfTheBatchEndsInTheFirstPhase) {
  JobSpec job = Job({Phase(4), Phase(3)});
  job.train.batch_warmup_start = 1;
  job.train.batch_warmup_steps = 4;
  ASSERT_TRUE(Run("warmup", job).ok());
  // 1, 1, 2 and 3 sequences, which are two batches of 4 begun.
  EXPECT_EQ(Summary("warmup").phases[0].tokens, 7 * 16);
  EXPECT_EQ(Manifest("warmup").data_offset, 2);
  EXPECT_EQ(Summary("warmup").phases[1].tokens, 12 * 16);
}

TEST_F(PhasesTest, GrowthThatKeepsTheFunctionKeepsTheLoss) {
  JobSpec stack = Job({Phase(6), Phase(4, "stack")});
  stack.phases[0].layers = 1;
  stack.phases[1].growth.new_blocks = "identity";
  JobSpec wide = Job({Phase(6), Phase(4, "fpi")});
  wide.phases[0].width = 16;
  wide.phases[0].heads = 1;
  for (const auto& [name, job] : {std::pair{"stack", stack}, {"wide", wide}}) {
    ASSERT_TRUE(Run(name, job).ok());
    const RunSummary summary = Summary(name);
    EXPECT_NEAR(*summary.phases[1].start_validation_loss_nats,
                *summary.phases[0].validation_loss_nats, 1e-5)
        << name;
    EXPECT_LT(*summary.validation_loss_nats, *summary.phases[0].validation_loss_nats) << name;
  }
  EXPECT_THAT(events_, HasSubstr("with the optimizer's state")) << "fpi keeps it";
  EXPECT_EQ(Manifest("wide").updates, 10);
  EXPECT_EQ(Manifest("stack").updates, 4);
}

TEST_F(PhasesTest, CopiesWithoutTheStateOfTheirOriginalsPartWays) {
  for (const char* optimizer : {"adamw", "muon"}) {
    const auto job = [&](const char* method) {
      JobSpec wide = Job({Phase(20), Phase(6, method)});
      wide.optimizer.name = optimizer;
      wide.phases[0].width = 16;
      wide.phases[0].heads = 1;
      return wide;
    };
    const std::string name = optimizer;
    ASSERT_TRUE(Run(name + "-fpi", job("fpi")).ok());
    ASSERT_TRUE(Run(name, job("sparkling")).ok());
    EXPECT_THAT(events_, HasSubstr("grown by sparkling, with the optimizer's state"));
    EXPECT_EQ(Manifest(name).updates, 26);
    // Twice the width is the same function.
    const PhaseSummary grown = Summary(name).phases[1];
    EXPECT_NEAR(*grown.start_validation_loss_nats, *Summary(name).phases[0].validation_loss_nats,
                1e-5);
    EXPECT_LT(DistanceOfCopies(name + "-fpi"), 1e-4);
    EXPECT_GT(DistanceOfCopies(name), 1e-3);

    ASSERT_TRUE(Run(name + "-stopped", job("sparkling"), 23).ok());
    ASSERT_TRUE(Run(name + "-stopped", job("sparkling")).ok());
    EXPECT_EQ(FinalState(name + "-stopped"), FinalState(name));
  }
}

TEST_F(PhasesTest, ImagesGrowWithTheNetwork) {
  JobSpec job = Job({Phase(30), Phase(10, "stack"), Phase(10)});
  job.model.family = "vit";
  job.model.image_size = 12;
  job.model.patch_size = 3;
  job.model.image_channels = 1;
  job.data = {};
  job.data.train = {std::string(WEFT_SOURCE_DIR) + "/docs/examples/shapes-images-idx3-ubyte.gz"};
  job.data.validation_fraction = 0.2;
  job.train.averaging.kind = "ema";
  job.train.averaging.decay = 0.9;
  job.phases[0].image_size = 6;
  job.phases[0].layers = 1;
  job.phases[1].image_size = 9;
  job.phases[1].growth.new_blocks = "averaged";
  ASSERT_TRUE(Run("images", job).ok());
  const RunSummary summary = Summary("images");
  EXPECT_EQ(summary.phases[0].tokens, 30 * 4 * (2 * 2 + 1));
  EXPECT_EQ(summary.phases[1].tokens, 10 * 4 * (3 * 3 + 1));
  EXPECT_EQ(summary.phases[2].tokens, 10 * 4 * (4 * 4 + 1));
  EXPECT_EQ(Manifest("images/phase-1").job.model.image_size, 6);
  EXPECT_EQ(Manifest("images/phase-2").data_offset, 30) << "an image is one whatever its size";
  ASSERT_TRUE(summary.phases[1].start_validation_loss_nats);
  EXPECT_TRUE(std::isfinite(*summary.phases[1].start_validation_loss_nats));
}

TEST_F(PhasesTest, ALargerModelOfOtherImagesIsMixedIn) {
  JobSpec job = VCycleOf("vit");
  job.phases[0].image_size = job.phases[1].image_size = 6;
  ASSERT_TRUE(Run("mixed", job).ok());
  const RunSummary summary = Summary("mixed");
  EXPECT_EQ(Manifest("mixed/phase-1").job.model.image_size, 6);
  EXPECT_EQ(Manifest("mixed").job.model.image_size, 12);
  EXPECT_EQ(summary.phases[2].tokens, 8 * 4 * (4 * 4 + 1));
  ASSERT_TRUE(summary.phases[2].start_validation_loss_nats);
  EXPECT_TRUE(std::isfinite(*summary.phases[2].start_validation_loss_nats));
}

TEST_F(PhasesTest, ALearnedGrowthStartsLowerThanItsCopies) {
  JobSpec copies = Job({Phase(30), Phase(4, "fpi")});
  copies.phases[0].layers = 1;
  copies.phases[0].width = 16;
  copies.phases[1].growth.optimizer_state = "new";
  JobSpec learned = copies;
  learned.phases[1].growth.method = "ligo";
  learned.phases[1].growth.fit_steps = 20;
  learned.phases[1].growth.fit_learning_rate = 3e-3;
  ASSERT_TRUE(Run("copies", copies).ok());
  ASSERT_TRUE(Run("learned", learned).ok());
  EXPECT_THAT(events_, HasSubstr("grown by ligo, learned in 20 steps from loss "));
  const PhaseSummary fpi = Summary("copies").phases[1], ligo = Summary("learned").phases[1];
  EXPECT_LT(*ligo.start_validation_loss_nats, *fpi.start_validation_loss_nats - 0.05);
  // The data and the work of the steps that learn count.
  EXPECT_EQ(Manifest("learned").data_offset, 30 + 20);
  EXPECT_EQ(ligo.tokens, fpi.tokens);
  EXPECT_GT(ligo.training_flops, 6 * fpi.training_flops) << "20 steps and the operator, then 4";
  JobSpec planned = learned;
  planned.model.vocab_size = Manifest("learned").job.model.vocab_size;
  EXPECT_NEAR((ligo.training_flops - fpi.training_flops) / GrowthFitFlops(planned, 1), 1, 1e-9);

  // Within a phase the operator is not learned again.
  ASSERT_TRUE(Run("stopped", learned, 32).ok());
  ASSERT_TRUE(Run("stopped", learned).ok());
  EXPECT_EQ(FinalState("stopped"), FinalState("learned"));
  EXPECT_EQ(Summary("stopped").phases[1].training_flops, ligo.training_flops);
  EXPECT_EQ(Summary("stopped").phases[1].start_validation_loss_nats,
            ligo.start_validation_loss_nats);
}

TEST_F(PhasesTest, SampledDepthsGrowIntoLayersWithoutASeam) {
  JobSpec job = Job({Phase(6), Phase(4, "stack")});
  job.phases[0].layers = 1;
  job.train.sampled_layers = 2;
  ASSERT_TRUE(Run("sampled", job).ok());
  ASSERT_TRUE(Run("stopped", job, 3).ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  EXPECT_EQ(FinalState("stopped"), FinalState("sampled"));
  EXPECT_EQ(Read("stopped/phase-1/loss.jsonl"), Read("sampled/phase-1/loss.jsonl"));
  // Some steps of the first phase have run two layers, others one.
  const RunSummary summary = Summary("sampled");
  const auto flops_of_token = [&](size_t phase) {
    return summary.phases[phase].training_flops / static_cast<double>(summary.phases[phase].tokens);
  };
  EXPECT_LT(flops_of_token(0), flops_of_token(1));
}

TEST_F(PhasesTest, AnImportedNetworkGrowsWithoutASeam) {
  const auto grow = [](JobSpec& job, const std::string& method) {
    job.phases[1].growth.method = method;
    if (method == "fpi") job.phases[1].width = 32;
    if (method == "stack") job.phases[1].layers = 5;
    job.phases[1].growth.new_blocks = "identity";
  };
  for (const char* method : {"stack", "fpi"}) {
    JobSpec job = Job({Phase(1), Phase(6)});
    job.model = {};
    job.model.import_path = job.data.tokenizer.path =
        WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/imported";
    job.phases[0].learning_rate = 1e-12;
    grow(job, method);
    const Status resolved = ResolveImportedModel(Env::Posix(), job);
    ASSERT_TRUE(resolved.ok()) << resolved.message();
    const ModelSpec before = JobOfPhase(job, 0).model;
    EXPECT_EQ(before.layers, 1);
    EXPECT_EQ(before.width, 16);
    ASSERT_TRUE(Run(method, job, 4).ok());
    const auto end = Run(method, job);
    ASSERT_TRUE(end.ok() && end->summary.has_value());
    const std::vector<PhaseSummary>& phases = end->summary->phases;
    ASSERT_EQ(phases.size(), 2U);
    EXPECT_NEAR(*phases[1].start_validation_loss_nats, *phases[0].validation_loss_nats, 1e-5);
    EXPECT_LT(*phases[1].validation_loss_nats, *phases[0].validation_loss_nats);
    const ModelSpec after = Manifest(method).job.model;
    EXPECT_EQ(after.layers * after.width, method == std::string("stack") ? 5 * 16 : 32);
    EXPECT_EQ(after.import_path, "") << "it is a network of its own";
  }
}

TEST_F(PhasesTest, OldBlocksStayAsTheyWereWhereTheyAreFrozen) {
  JobSpec job = Job({Phase(4), Phase(5, "stack"), Phase(4)});
  job.phases[0].layers = 1;
  job.phases[1].growth.new_blocks = "identity";
  job.phases[1].growth.freeze_old = true;
  ASSERT_TRUE(Run("frozen", job).ok());
  const RunSummary summary = Summary("frozen");
  EXPECT_NEAR(*summary.phases[1].start_validation_loss_nats,
              *summary.phases[0].validation_loss_nats, 1e-5);
  EXPECT_LT(*summary.phases[1].validation_loss_nats, *summary.phases[1].start_validation_loss_nats);
  const auto norm = [&](const std::string& run) {
    return Parameter(run, "transformer.ln_f.weight", {job.model.width});
  };
  const auto block = [&](const std::string& run, int number) {
    return Parameter(run, "transformer.h." + std::to_string(number) + ".mlp.c_proj.weight",
                     {job.model.width, MlpWidth(job.model)});
  };
  const std::string first = "frozen/phase-1", grown = "frozen/phase-2";
  EXPECT_EQ(norm(grown), norm(first));
  EXPECT_EQ(block(grown, 0), block(first, 0));
  EXPECT_NE(block(grown, 1), std::vector<float>(block(grown, 1).size())) << "it began as zeros";
  EXPECT_NE(norm("frozen"), norm(first)) << "nothing is frozen after that phase";
  EXPECT_NE(block("frozen", 0), block(first, 0));

  for (const int64_t steps : {6, 5}) ASSERT_TRUE(Run("stopped", job, steps).ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  EXPECT_EQ(FinalState("stopped/phase-2"), FinalState(grown));
  EXPECT_EQ(FinalState("stopped"), FinalState("frozen"));
}

TEST_F(PhasesTest, NewBlocksStartAsRandomOnesDo) {
  JobSpec job = Job({Phase(4), Phase(3, "stack")});
  job.phases[0].layers = 1;
  job.phases[1].growth.new_blocks = "random";
  ASSERT_TRUE(Run("random", job).ok());
  EXPECT_TRUE(std::isfinite(*Summary("random").validation_loss_nats));
  EXPECT_GT(*Summary("random").phases[1].start_validation_loss_nats, 0);
}

TEST_F(PhasesTest, AModelWithoutBlocksLearnsAndGrowsAllOfThem) {
  JobSpec job = Job({Phase(8), Phase(6, "stack")});
  job.phases[0].layers = 0;
  job.phases[1].growth.new_blocks = "random";
  job.phases[1].growth.optimizer_state = "kept";
  ASSERT_TRUE(Run("none", job).ok());
  EXPECT_EQ(Manifest("none/phase-1").job.model.layers, 0);
  EXPECT_EQ(Manifest("none").job.model.layers, job.model.layers);
  EXPECT_EQ(Manifest("none").updates, 14);
  const RunSummary summary = Summary("none");
  // Each token says something about the next one, which random weights do not.
  EXPECT_LT(*summary.phases[0].validation_loss_nats, std::log(264.0) - 0.1);
  EXPECT_LT(*summary.validation_loss_nats, *summary.phases[1].start_validation_loss_nats);
  for (const int64_t steps : {3, 8}) ASSERT_TRUE(Run("stopped", job, steps).ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  for (const char* phase : {"/phase-1", ""}) {
    EXPECT_EQ(FinalState("stopped" + std::string(phase)), FinalState("none" + std::string(phase)));
  }
}

TEST_F(PhasesTest, MasksOfGrowthHideWhatIsNewAndRiseToAllOfIt) {
  const JobSpec job = Masked();
  ASSERT_TRUE(Run("masks", job).ok());
  const RunSummary summary = Summary("masks");
  EXPECT_NEAR(*summary.phases[1].start_validation_loss_nats,
              *summary.phases[0].validation_loss_nats, 1e-5);
  EXPECT_LT(*summary.validation_loss_nats, *summary.phases[1].start_validation_loss_nats);
  EXPECT_THAT(events_, HasSubstr("grown by msg, with the optimizer's state"));
  EXPECT_EQ(Manifest("masks").updates, 6 + 9);
  // Within the ramp, at its end, and after it.
  for (const int64_t steps : {8, 2, 3}) ASSERT_TRUE(Run("stopped", job, steps).ok());
  ASSERT_TRUE(Run("stopped", job).ok());
  EXPECT_EQ(Read("stopped/loss.jsonl"), Read("masks/loss.jsonl"));
  EXPECT_EQ(FinalState("stopped"), FinalState("masks"));
}

TEST_F(PhasesTest, ACheckpointWithMasksIsNotGrownFromOrExported) {
  const JobSpec job = Masked();
  ASSERT_TRUE(Run("masks", job, 6 + 3).ok());
  engine::CheckpointManifest manifest = Manifest("masks");
  ASSERT_LT(manifest.step, job.phases[1].growth.ramp_steps);
  engine::ModelOptions options;
  options.precision = &kFp32Precision;
  engine::TinyRun run(manifest.job.model, options);
  const std::string folder = Folder(engine::CheckpointPath("masks", manifest.step));
  const Status status = LoadTrainedWeights(Env::Posix(), folder, manifest, run.model->parameters());
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("one of step 5 or later"));
  manifest.step = job.phases[1].growth.ramp_steps;
  EXPECT_TRUE(LoadTrainedWeights(Env::Posix(), folder, manifest, run.model->parameters()).ok());
}

TEST_F(PhasesTest, APhaseThatWasLostOrIsOfAnotherJobSaysWhatToDo) {
  JobSpec job = Job({Phase(2), Phase(2)});
  ASSERT_TRUE(Run("lost", job).ok());
  job.phases[0].steps = 3;
  Status status = Start("lost", job).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("was trained by another job: train.steps was 2, is 3"));
  job.phases[0].steps = 2;
  ASSERT_TRUE(Env::Posix().RemoveTree(Folder("lost/phase-1/checkpoints")).ok());
  status = Start("lost", job).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), HasSubstr("lost/phase-1 is complete, and its last checkpoint"));
}

}  // namespace
}  // namespace weft::trainer
