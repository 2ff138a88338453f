#include "worker/engine/train/trainer.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

RandomTokens TinyTokens() {
  return {TinyModel().vocab_size, TinyModel().context};
}

TEST(TrainerTest, AccumulatedMicroBatchesEqualOneLargeBatch) {
  RandomTokens tokens = TinyTokens();
  TinyTraining whole(TinyJob(8), TinyPlan("fp32", 8, 1), tokens);
  const StepReport once = whole.Step();
  const std::vector<float> expected = whole.Gradients();
  double norm = 0;
  for (float g : expected) norm += static_cast<double>(g) * g;
  EXPECT_NEAR(once.gradient_norm, std::sqrt(norm), 1e-6 * once.gradient_norm);
  EXPECT_EQ(once.tokens, 8 * 16);
  EXPECT_EQ(once.targets, 8 * 16);
  for (int64_t micro_batch : {1, 2, 4}) {
    TinyTraining split(TinyJob(8), TinyPlan("fp32", micro_batch, 8 / micro_batch), tokens);
    const StepReport report = split.Step();
    EXPECT_NEAR(report.loss, once.loss, 1e-6 * once.loss);
    const std::vector<float> gradients = split.Gradients();
    double difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(static_cast<double>(gradients[i]) - expected[i], 2);
    }
    EXPECT_LT(std::sqrt(difference / norm), 1e-6) << micro_batch;
  }
}

TEST(TrainerTest, ARepeatedPatternIsLearnt) {
  CountingTokens tokens(7, 16);
  for (const char* precision : {"fp32", "bf16"}) {
    JobSpec job = TinyJob(4);
    job.optimizer.learning_rate = 1e-2;
    job.optimizer.weight_decay = 0;
    job.schedule.kind = "linear";
    TinyTraining run(job, TinyPlan(precision, 2, 2), tokens);
    EXPECT_NEAR(run.Step().loss, std::log(50.0), 0.2) << "a new model knows nothing";
    while (!run.trainer->finished()) run.Step();
    EXPECT_EQ(run.trainer->counters().step, 100);
    auto evaluation = run.trainer->Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status().ToString();
    EXPECT_LT(evaluation->loss, 0.02) << precision;
    EXPECT_EQ(evaluation->targets, 7 * 16);
  }
}

TEST(TrainerTest, StepsAfterTheFirstTakeNoMemoryFromTheSystem) {
  RandomTokens tokens = TinyTokens();
  JobSpec job = TinyJob(8);
  job.model.dropout = 0.1;
  Plan plan = TinyPlan("bf16", 2, 4);
  plan.block_memory_policy = {"recompute", "keep"};
  TinyTraining run(job, plan, tokens);
  run.Step();
  const int64_t allocations = run.allocator.system_allocations();
  for (int i = 0; i < 3; ++i) run.Step();
  EXPECT_EQ(run.allocator.system_allocations(), allocations);
  EXPECT_EQ(run.allocator.live_bytes(Component::kActivations), 0);
  EXPECT_EQ(run.allocator.live_bytes(Component::kWorkspace), 0);
}

TEST(TrainerTest, FrozenWeightsArePackedAtTheStartAndAfterALoadOnly) {
  if (MultipliesStored(ProductsOf(DType::kBF16))) GTEST_SKIP() << "there are no packed copies";
  RandomTokens tokens = TinyTokens();
  JobSpec job = TinyJob(4);
  // With all before it frozen, too, the block has no backward pass, which may read the master; nor
  // has a product in bf16 to.
  job.model.freeze = {"transformer.w*", "transformer.h.0.*"};
  TinyTraining run(job, TinyPlan("bf16"), tokens);
  TinyTraining same(job, TinyPlan("bf16"), tokens);
  run.Step();
  same.Step();
  const ParameterSet& parameters = run.model->parameters();
  const int64_t index = parameters.Find("transformer.h.0.mlp.c_fc.weight").value();
  const TensorView frozen = parameters.value(index);
  for (int64_t i = 0; i < frozen.shape.Elements(); ++i) frozen.As<float>()[i] *= 3;
  // Steps go on with the packed copy, whatever is in the master.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.Step().loss, same.Step().loss);
  ASSERT_TRUE(run.trainer->Restored(run.trainer->counters()).ok());
  EXPECT_NE(run.Step().loss, same.Step().loss);
}

TEST(TrainerTest, ANonFiniteGradientSkipsTheUpdateAndIsCounted) {
  RandomTokens tokens = TinyTokens();
  TinyTraining run(TinyJob(4), TinyPlan("fp32"), tokens);
  run.Step();
  float* bias = run.model->parameters().value(run.model->parameters().size() - 1).As<float>();
  const float before = *bias;
  *bias = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> poisoned = run.Parameters();
  const StepReport report = run.Step();
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(run.trainer->counters().skipped_steps, 1);
  EXPECT_EQ(run.trainer->counters().step, 2);
  EXPECT_EQ(run.trainer->counters().updates, 1);
  EXPECT_EQ(std::memcmp(run.Parameters().data(), poisoned.data(), poisoned.size() * 4), 0);
  *bias = before;
  EXPECT_FALSE(run.Step().skipped);
}

TEST(TrainerTest, ClippingBoundsTheUpdateNotTheReport) {
  RandomTokens tokens = TinyTokens();
  // Without epsilon's help AdamW does not see a scale: make epsilon dominate, so that the first
  // update is about learning_rate * gradient / epsilon.
  const auto moved = [&](double clip) {
    JobSpec job = TinyJob(4);
    job.optimizer.epsilon = 1.0;
    job.optimizer.weight_decay = 0;
    job.optimizer.learning_rate = 1e-3;
    job.schedule.kind = "constant";
    job.train.gradient_clip_norm = clip;
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    const std::vector<float> start = run.Parameters();
    const StepReport report = run.Step();
    const std::vector<float> end = run.Parameters();
    double sum = 0;
    for (size_t i = 0; i < start.size(); ++i) sum += std::pow(end[i] - start[i], 2.0);
    return std::pair(report.gradient_norm, std::sqrt(sum));
  };
  const auto [norm, free] = moved(0);
  const auto [clipped_norm, clipped] = moved(norm / 4);
  EXPECT_EQ(norm, clipped_norm);
  EXPECT_NEAR(clipped / free, 0.25, 0.05);
  EXPECT_NEAR(moved(norm * 4).second, free, 1e-9);
}

TEST(TrainerTest, AWarmedUpBatchGrowsAndResumesExactly) {
  RandomTokens tokens = TinyTokens();
  JobSpec job = TinyJob(8);
  job.train.batch_warmup_start = 2;
  job.train.batch_warmup_steps = 6;
  const int64_t expected[] = {2, 2, 4, 4, 6, 6, 8, 8};
  for (int64_t micro_batch : {1, 2}) {
    TinyTraining run(job, TinyPlan("fp32", micro_batch, 8 / micro_batch), tokens);
    for (int64_t sequences : expected) {
      const StepReport report = run.Step();
      EXPECT_EQ(report.tokens, sequences * 16);
      EXPECT_EQ(report.targets, sequences * 16);
    }
    EXPECT_EQ(run.trainer->counters().tokens, 40 * 16);
  }
  JobSpec full = job;
  full.train.batch_warmup_steps = 0;
  TinyTraining warm(job, TinyPlan("fp32", 2, 4), tokens),
      cold(full, TinyPlan("fp32", 2, 4), tokens);
  TrainCounters later;
  later.step = later.updates = 7;
  ASSERT_TRUE(warm.trainer->Restored(later).ok());
  ASSERT_TRUE(cold.trainer->Restored(later).ok());
  EXPECT_EQ(warm.Step().loss, cold.Step().loss) << "after the warm-up the batch is as without it";
}

TEST(TrainerTest, EvaluationUsesTheAveragedWeightsAndLeavesTrainingAlone) {
  RandomTokens tokens = TinyTokens();
  for (const char* kind : {"ema", "lawa", "schedule_free"}) {
    JobSpec job = TinyJob(4);
    job.optimizer.learning_rate = 0.05;
    job.schedule.kind = "constant";
    if (kind == std::string("schedule_free")) {
      job.optimizer.name = "schedule_free_adamw";
    } else {
      job.train.averaging.kind = kind;
      job.train.averaging.decay = 0.5;
      job.train.averaging.window = 3;
    }
    JobSpec without = job;
    without.train.averaging.kind = "none";
    TinyTraining averaged(job, TinyPlan("fp32"), tokens), plain(without, TinyPlan("fp32"), tokens);
    for (int step = 0; step < 4; ++step) {
      averaged.Step();
      plain.Step();
    }
    EXPECT_EQ(averaged.Parameters(), plain.Parameters()) << kind;
    const auto report = averaged.trainer->Evaluate();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(averaged.Parameters(), plain.Parameters()) << kind << ", evaluated";
    EXPECT_EQ(averaged.Step().loss, plain.Step().loss) << kind;
    if (kind != std::string("schedule_free")) {
      const auto raw = plain.trainer->Evaluate();
      ASSERT_TRUE(raw.ok());
      EXPECT_NE(report->loss, raw->loss) << kind;
    }
  }
}

TEST(TrainerTest, TheNoiseScaleComparesTheFirstMicroBatchWithAll) {
  RandomTokens tokens = TinyTokens();
  JobSpec job = TinyJob(8);
  job.train.gradient_noise_scale = true;
  TinyTraining run(job, TinyPlan("fp32", 2, 4), tokens);
  // The same norms by hand, of the gradients of the first step.
  TinyRun small(job.model, ModelOptionsOf(TinyPlan("fp32"))),
      large(job.model, ModelOptionsOf(TinyPlan("fp32")));
  const auto square = [&](TinyRun& of, int64_t sequences) {
    of.Differentiate(*tokens.Get(0, 0, sequences), 1.0f / static_cast<float>(16 * sequences));
    double sum = 0;
    for (float g : of.Gradients()) sum += static_cast<double>(g) * g;
    return sum;
  };
  const double g2 = square(small, 2), g8 = square(large, 8);
  const double noise = (g2 - g8) / (1.0 / 2 - 1.0 / 8), signal = (8 * g8 - 2 * g2) / 6;
  const StepReport report = run.Step();
  if (noise > 0 && signal > 0) {
    ASSERT_EQ(report.technique_metrics.size(), 1);
    EXPECT_NEAR(report.technique_metrics.at("gradient_noise_scale_sequences"), noise / signal,
                1e-3 * noise / signal);
  } else {
    EXPECT_TRUE(report.technique_metrics.empty());
  }
  EXPECT_GT(noise, 0);
  EXPECT_EQ(run.trainer->StateTensors().back().name, "gradient_noise_scale/averages");
}

TEST(TrainerTest, ARestoredStateGoesOnBitForBit) {
  RandomTokens tokens = TinyTokens();
  JobSpec job = TinyJob(4);
  job.model.dropout = 0.1;
  TinyTraining original(job, TinyPlan("bf16"), tokens);
  for (int i = 0; i < 3; ++i) original.Step();
  TinyTraining copy(job, TinyPlan("bf16"), tokens);
  const auto from = original.trainer->StateTensors();
  const auto to = copy.trainer->StateTensors();
  ASSERT_EQ(from.size(), to.size());
  ASSERT_EQ(static_cast<int64_t>(from.size()), 3 * original.model->parameters().size());
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].name, to[i].name);
    std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
  }
  ASSERT_TRUE(copy.trainer->Restored(original.trainer->counters()).ok());
  for (int i = 0; i < 3; ++i) {
    const StepReport expected = original.Step();
    const StepReport got = copy.Step();
    EXPECT_EQ(got.step, expected.step);
    EXPECT_EQ(got.loss, expected.loss);
    EXPECT_EQ(got.gradient_norm, expected.gradient_norm);
  }
  EXPECT_EQ(copy.Parameters(), original.Parameters());
}

// Plays one of two equal ranks: sums are doubled.
class TwinReducer : public GradientReducer {
 public:
  int64_t world_size() const override { return 2; }
  Status Begin(bool last) override {
    begins.push_back(last);
    return OkStatus();
  }
  Status OnGradientReady(int64_t index) override {
    EXPECT_TRUE(begins.back()) << "only the last micro-batch is reduced";
    ready.resize(std::max<size_t>(ready.size(), index + 1));
    ++ready[index];
    order.push_back(index);
    return OkStatus();
  }
  Status Finish() override {
    float* data = gradients.As<float>();
    for (int64_t i = 0; i < gradients.shape.Elements(); ++i) data[i] *= 2;
    return OkStatus();
  }
  Status SumScalars(std::span<double> values) override {
    for (double& value : values) value *= 2;
    return OkStatus();
  }
  Status Maximum(const TensorView& /*values*/) override { return OkStatus(); }

  TensorView gradients;
  std::vector<bool> begins;
  std::vector<int> ready;
  std::vector<int64_t> order;
};

// The first half of the global batch twice, as two ranks with equal data would see it.
class HalfTwice : public BatchSource {
 public:
  int64_t Sequences() const override { return inner_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    return inner_.Get(step, first % 4, count);
  }

 private:
  RandomTokens inner_ = TinyTokens();
};

TEST(TrainerTest, TwoRanksWithHalfTheBatchEachMakeTheSameStep) {
  HalfTwice tokens;
  TinyTraining alone(TinyJob(8), TinyPlan("fp32", 4, 2), tokens);
  Plan plan = TinyPlan("fp32", 2, 2);
  plan.mesh.data = 2;
  TwinReducer reducer;
  TinyTraining twin(TinyJob(8), plan, tokens, &reducer);
  reducer.gradients = twin.model->parameters().gradients();
  const StepReport expected = alone.Step();
  const StepReport got = twin.Step();
  EXPECT_NEAR(got.loss, expected.loss, 1e-6 * expected.loss);
  EXPECT_NEAR(got.gradient_norm, expected.gradient_norm, 1e-5 * expected.gradient_norm);
  EXPECT_EQ(got.targets, expected.targets);
  EXPECT_EQ(reducer.begins, (std::vector<bool>{false, true}));
  EXPECT_EQ(static_cast<int64_t>(reducer.ready.size()), twin.model->parameters().size());
  EXPECT_THAT(reducer.ready, Each(1));
  EXPECT_LE(reducer.order.back(), 1) << "embeddings are complete last";
}

TEST(TrainerTest, TooLittleMemoryIsExhaustedNotACrash) {
  RandomTokens tokens = TinyTokens();
  const JobSpec job = TinyJob(4);
  const Plan plan = TinyPlan("bf16");
  int64_t before_a_step = 0;
  {
    TinyTraining run(job, plan, tokens);
    before_a_step = run.allocator.held_bytes();
  }
  TinyRun run(job.model, ModelOptionsOf(plan), before_a_step + 30000);
  auto trainer = Trainer::New(
      job, plan, {.context = &run.context, .model = run.model.get(), .train = &tokens});
  ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
  const auto report = (*trainer)->Step();
  EXPECT_EQ(report.status().code(), StatusCode::kExhausted);
  EXPECT_THAT(report.status().message(), HasSubstr("limit"));
  EXPECT_EQ((*trainer)->counters().step, 0);
}

TEST(TrainerTest, JobsAndPlansThatDoNotFitAreRefused) {
  RandomTokens tokens = TinyTokens();
  TinyRun run(TinyModel(), {&kFp32Precision, true, {}});
  const auto message = [&](const Plan& plan) {
    auto trainer = Trainer::New(
        TinyJob(4), plan, {.context = &run.context, .model = run.model.get(), .train = &tokens});
    EXPECT_EQ(trainer.status().code(), StatusCode::kInvalid);
    return trainer.status().message();
  };
  EXPECT_THAT(message(TinyPlan("fp32", 3, 1)), HasSubstr("global_batch 4"));
  EXPECT_THAT(message(TinyPlan("bf16", 4, 1)), HasSubstr("precision is bf16"));
  Plan two = TinyPlan("fp32", 2, 1);
  two.mesh.data = 2;
  EXPECT_THAT(message(two), HasSubstr("2 ranks"));
  // What does not go together, whatever the model was made for.
  JobSpec lion = TinyJob(4);
  lion.optimizer.name = "lion";
  Plan offloaded = TinyPlan("fp32", 4, 1);
  offloaded.offload_optimizer = "host";
  const Status refused =
      Trainer::New(lion, offloaded,
                   {.context = &run.context, .model = run.model.get(), .train = &tokens})
          .status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalid);
  EXPECT_THAT(refused.message(), HasSubstr("the plan: resources.offload_optimizer host does not go "
                                           "with optimizer.name lion"));
}

// Nothing to predict.
class NoTargets : public BatchSource {
 public:
  int64_t Sequences() const override { return 4; }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    WEFT_ASSIGN_OR_RETURN(Batch batch, TinyTokens().Get(step, first, count));
    for (int32_t& target : batch.targets) target = kernels::kIgnoreTarget;
    batch.target_count = 0;
    return batch;
  }
};

TEST(TrainerTest, DataWithoutTargetsIsAnErrorNotANaN) {
  NoTargets tokens;
  TinyTraining run(TinyJob(4), TinyPlan("fp32"), tokens);
  EXPECT_EQ(run.trainer->Step().status().code(), StatusCode::kInvalid);
  EXPECT_EQ(run.trainer->Evaluate().status().code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::engine
