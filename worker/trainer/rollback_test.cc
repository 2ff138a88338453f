// A window of bad data, in a whole attempt of two ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "common/json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/trainer/run_attempt.h"

namespace weft::trainer {
namespace {

/// Counting sequences, which are soon learnt; what a step reads is decided by a function.
class EditedTokens : public engine::BatchSource {
 public:
  /// The data of a step: which step of the original, or garbage for -1.
  using Edit = std::function<int64_t(int64_t step)>;
  explicit EditedTokens(Edit edit) : edit_(std::move(edit)) {}

  int64_t Sequences() const override { return counting_.Sequences(); }
  Result<engine::Batch> Get(int64_t step, int64_t first, int64_t count) override {
    const int64_t source = edit_(step);
    return source < 0 ? garbage_.Get(step, first, count) : counting_.Get(source, first, count);
  }

 private:
  Edit edit_;
  engine::CountingTokens counting_{7, 16};
  engine::RandomTokens garbage_{50, 16};
};

class Listener : public Reporter {
 public:
  void Report(const RankMessage& message) override {
    std::lock_guard lock(mutex_);
    if (auto* event = std::get_if<EventMessage>(&message)) events += event->text + "\n";
    if (auto* progress = std::get_if<ProgressMessage>(&message)) {
      EXPECT_EQ(progress->steps, 1) << "step " << progress->step;
      EXPECT_GT(progress->step_seconds, 0) << "step " << progress->step;
      last = *progress;
    }
  }
  bool StopRequested() override { return false; }

  std::string events;
  ProgressMessage last;

 private:
  std::mutex mutex_;
};

class RollbackTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft_rollback_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  /// Trains on two ranks, or one, or goes on; returns what rank 0 reported.
  std::unique_ptr<Listener> Train(const std::string& run, const EditedTokens::Edit& edit,
                                  int64_t zero_stage = 0, int64_t steps = kSteps,
                                  int64_t tensor = 1, int64_t pipeline = 1,
                                  const std::string& offload = "none", int ranks = 2) {
    engine::HashStore store;
    auto listener = std::make_unique<Listener>();
    Listener other;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        AttemptSpec spec;
        spec.job_id = run;
        spec.epoch = steps == kSteps ? 2 : 1;
        spec.rank = rank;
        spec.world_size = ranks;
        spec.host = "127.0.0.1";
        spec.run_dir = root_ + "/" + run;
        spec.job = engine::TinyJob(4);
        spec.job.data.train = {"made up"};
        spec.job.optimizer.learning_rate = 0.01;
        spec.job.schedule.kind = "constant";
        spec.job.train.precision = "fp32";
        spec.job.train.steps = steps;
        spec.job.train.eval_every_steps = 0;
        spec.job.train.guard.spike_deviations = 6;
        spec.job.train.guard.window = 16;
        spec.job.checkpoint.every_steps = 32;
        spec.plan = engine::TinyPlan("fp32", 2);
        spec.plan.mesh.data = ranks / (tensor * pipeline);
        spec.plan.mesh.tensor = tensor;
        spec.plan.mesh.pipeline = pipeline;
        if (pipeline > 1) spec.plan.stage_blocks = {1, 1};
        spec.plan.accumulation_steps = 2 * tensor * pipeline / ranks;
        spec.plan.zero_stage = zero_stage;
        spec.plan.offload_optimizer = offload;
        if (zero_stage > 2 || offload == "nvme") spec.plan.offload_parameters = offload;
        if (offload == "nvme") spec.plan.offload_directory = root_;
        TrainingData data;
        data.train = std::make_unique<EditedTokens>(edit);
        data.vocab_size = 50;
        data.fingerprint = "counting";
        auto outcome = RunAttemptOn(Env::Posix(), spec, std::move(data),
                                    rank == 0 ? static_cast<Reporter&>(*listener) : other, store);
        EXPECT_TRUE(outcome.ok()) << outcome.status().message();
      });
    }
    for (std::thread& rank : threads) rank.join();
    return listener;
  }
  std::string Read(const std::string& path) { return *ReadFile(Env::Posix(), root_ + "/" + path); }
  std::vector<double> Losses(const std::string& run) {
    std::vector<double> losses;
    std::istringstream lines(Read(run + "/loss.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      losses.push_back(ParseJson(line)->at("loss").get<double>());
    }
    return losses;
  }
  std::string FinalState(const std::string& run) {
    return *ReadFile(Env::Posix(), engine::CheckpointPath(root_ + "/" + run, kSteps) +
                                       "/state-00000-of-00001.safetensors");
  }

  static constexpr int64_t kSteps = 64;
  std::string root_;
};

TEST_F(RollbackTest, ARunThatMetBadDataEndsAsOneThatNeverSawIt) {
  // The garbage of steps 41 to 43 is noticed, and the run goes back to its checkpoint of step 32.
  auto guarded =
      Train("guarded", [](int64_t step) { return step >= 40 && step < 43 ? int64_t{-1} : step; });
  EXPECT_THAT(guarded->events, testing::HasSubstr("step 41: the loss of "));
  EXPECT_THAT(guarded->events, testing::HasSubstr("the mean of the last 16 steps"));
  EXPECT_THAT(guarded->events, testing::HasSubstr("went back from step 43 to step 32"));
  EXPECT_EQ(guarded->last.loss_spikes, 3);
  EXPECT_EQ(guarded->last.skipped_steps, 3);
  EXPECT_EQ(guarded->last.rollbacks, 1);

  auto clean = Train("clean", [](int64_t step) { return step < 32 ? step : step + 11; });
  EXPECT_EQ(clean->last.skipped_steps, 0);
  EXPECT_EQ(Read("guarded/loss.jsonl"), Read("clean/loss.jsonl"));
  EXPECT_EQ(FinalState("guarded"), FinalState("clean"));
}

TEST_F(RollbackTest, RanksThatShareUpdatesGoBackAndOnAlike) {
  const auto edit = [](int64_t step) { return step >= 40 && step < 43 ? int64_t{-1} : step; };
  (void)Train("plain", edit);
  for (const int64_t stage : {2, 3}) {
    const std::string run = "shared-" + std::to_string(stage);
    auto shared = Train(run, edit, stage);
    EXPECT_EQ(shared->last.rollbacks, 1);
    EXPECT_EQ(Read(run + "/loss.jsonl"), Read("plain/loss.jsonl"));
    const std::string folder = engine::CheckpointPath(root_ + "/" + run, kSteps);
    EXPECT_TRUE(engine::VerifyCheckpoint(Env::Posix(), folder).ok());
    EXPECT_TRUE(Env::Posix().FileExists(folder + "/state-00001-of-00002.safetensors"));
  }

  // Ranks that shard nothing, or parameters, go on where these stopped.
  for (const auto& [first, then] : {std::pair(3, 0), std::pair(1, 3)}) {
    const std::string run = "changes-from-" + std::to_string(first);
    (void)Train(run, edit, first, 32);
    (void)Train(run, edit, then);
    EXPECT_EQ(Read(run + "/loss.jsonl"), Read("plain/loss.jsonl"));
  }
}

TEST_F(RollbackTest, RanksThatUpdateOnTheHostGoBackAndOnAlike) {
  const auto edit = [](int64_t step) { return step >= 40 && step < 43 ? int64_t{-1} : step; };
  (void)Train("plain", edit);
  for (const int64_t stage : {0, 2, 3}) {
    const std::string run = "host-" + std::to_string(stage);
    auto offloaded = Train(run, edit, stage, kSteps, 1, 1, "host");
    EXPECT_EQ(offloaded->last.rollbacks, 1);
    EXPECT_EQ(Read(run + "/loss.jsonl"), Read("plain/loss.jsonl"));
  }
  // Ranks without offload go on where these stopped, and the other way round.
  (void)Train("down", edit, 1, 32);
  (void)Train("down", edit, 2, kSteps, 1, 1, "host");
  EXPECT_EQ(Read("down/loss.jsonl"), Read("plain/loss.jsonl"));
  (void)Train("up", edit, 2, 32, 1, 1, "host");
  (void)Train("up", edit, 3);
  EXPECT_EQ(Read("up/loss.jsonl"), Read("plain/loss.jsonl"));
}

TEST_F(RollbackTest, ARankWhoseStateIsInFilesGoesBackAndOnAlike) {
  const auto edit = [](int64_t step) { return step >= 40 && step < 43 ? int64_t{-1} : step; };
  (void)Train("plain", edit, 0, kSteps, 1, 1, "none", 1);
  auto filed = Train("filed", edit, 0, kSteps, 1, 1, "nvme", 1);
  EXPECT_EQ(filed->last.rollbacks, 1);
  EXPECT_EQ(Read("filed/loss.jsonl"), Read("plain/loss.jsonl"));
  EXPECT_EQ(FinalState("filed"), FinalState("plain"));
}

TEST_F(RollbackTest, RanksThatShareMatricesGoBackAndOnAlike) {
  const auto edit = [](int64_t step) { return step >= 40 && step < 43 ? int64_t{-1} : step; };
  (void)Train("plain", edit);
  const std::vector<double> plain = Losses("plain");
  auto shared = Train("shared", edit, 0, kSteps, 2);
  EXPECT_EQ(shared->last.rollbacks, 1);
  EXPECT_THAT(Losses("shared"), testing::Pointwise(testing::DoubleNear(1e-3), plain));
  const std::string folder = engine::CheckpointPath(root_ + "/shared", kSteps);
  EXPECT_TRUE(engine::VerifyCheckpoint(Env::Posix(), folder).ok());
  EXPECT_TRUE(Env::Posix().FileExists(folder + "/state-00001-of-00002.safetensors"));

  (void)Train("shared-host", edit, 0, kSteps, 2, 1, "host");
  EXPECT_EQ(Read("shared-host/loss.jsonl"), Read("shared/loss.jsonl"));

  // Tensor-parallel ranks go on where others stopped, and the other way round.
  for (const int64_t tensor : {1, 2}) {
    const std::string run = "changes-from-" + std::to_string(tensor);
    (void)Train(run, edit, 0, 32, tensor);
    (void)Train(run, edit, 0, kSteps, 3 - tensor);
    EXPECT_THAT(Losses(run), testing::Pointwise(testing::DoubleNear(1e-3), plain));
  }
}

TEST_F(RollbackTest, StagesOfAPipelineGoBackAndOnAlike) {
  const auto edit = [](int64_t step) { return step >= 40 && step < 43 ? int64_t{-1} : step; };
  (void)Train("plain", edit);
  const std::vector<double> plain = Losses("plain");
  auto stages = Train("stages", edit, 0, kSteps, 1, 2);
  EXPECT_EQ(stages->last.rollbacks, 1);
  EXPECT_THAT(Losses("stages"), testing::Pointwise(testing::DoubleNear(1e-3), plain));
  const std::string folder = engine::CheckpointPath(root_ + "/stages", kSteps);
  EXPECT_TRUE(engine::VerifyCheckpoint(Env::Posix(), folder).ok());
  EXPECT_TRUE(Env::Posix().FileExists(folder + "/state-00001-of-00002.safetensors"));

  (void)Train("stages-host", edit, 0, kSteps, 1, 2, "host");
  EXPECT_EQ(Read("stages-host/loss.jsonl"), Read("stages/loss.jsonl"));

  // Stages go on where replicas stopped, and the other way round.
  for (const int64_t pipeline : {1, 2}) {
    const std::string run = "changes-from-stages-" + std::to_string(pipeline);
    (void)Train(run, edit, 0, 32, 1, pipeline);
    (void)Train(run, edit, 0, kSteps, 1, 3 - pipeline);
    EXPECT_THAT(Losses(run), testing::Pointwise(testing::DoubleNear(1e-3), plain));
  }
}

TEST_F(RollbackTest, AShortSpikeOnlySkipsItsUpdate) {
  auto guarded = Train("short", [](int64_t step) { return step == 40 ? int64_t{-1} : step; });
  EXPECT_EQ(guarded->last.loss_spikes, 1);
  EXPECT_EQ(guarded->last.rollbacks, 0);
  EXPECT_LT(*guarded->last.loss, 0.5);
}

}  // namespace
}  // namespace weft::trainer
