// Steps that are CUDA graphs against the same steps operation by operation.

#include <bit>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "worker/engine/testing/token_streams.h"
#include "worker/engine/testing/trainer_on_cuda.h"

namespace weft::engine {
namespace {

// What two runs that are to be equal bit for bit report of a step.
void ExpectEqualReports(const StepReport& got, const StepReport& want, int64_t step) {
  EXPECT_EQ(got.loss, want.loss) << step;
  // NaN too, when an fp16 gradient overflows.
  EXPECT_EQ(std::bit_cast<uint64_t>(got.gradient_norm), std::bit_cast<uint64_t>(want.gradient_norm))
      << step;
  EXPECT_EQ(got.skipped, want.skipped) << step;
  EXPECT_EQ(got.loss_scale, want.loss_scale) << step;
  EXPECT_EQ(got.technique_metrics, want.technique_metrics) << step;
  EXPECT_EQ(got.step_memory.activations_bytes, want.step_memory.activations_bytes) << step;
  EXPECT_EQ(got.step_memory.workspace_bytes, want.step_memory.workspace_bytes) << step;
  ASSERT_EQ(got.norms.size(), want.norms.size()) << step;
  for (size_t g = 0; g < want.norms.size(); ++g) {
    EXPECT_EQ(got.norms[g].gradient, want.norms[g].gradient) << step;
  }
}

// Trains with graphs and without them; returns how many steps were graphs, and in `skipped` how
// many updates were not made.
int64_t CompareWithEager(const JobSpec& job, const Plan& plan, BatchSource& data, int64_t steps,
                         int64_t* skipped = nullptr) {
  DeviceRun graphs(job, plan, data, kCudaDevice),
      eager(job, plan, data, kCudaDevice, {.graphs = false});
  for (int64_t step = 0; step < steps; ++step) {
    ExpectEqualReports(graphs.Step(), eager.Step(), step);
    if (step != steps / 2) continue;
    // Takes memory that the graphs use.
    auto got = graphs.trainer->Evaluate(), want = eager.trainer->Evaluate();
    EXPECT_TRUE(got.ok() && want.ok());
    EXPECT_EQ(got->loss, want->loss);
  }
  if (skipped != nullptr) *skipped = graphs.trainer->counters().skipped_steps;
  EXPECT_EQ(graphs.State(), eager.State());
  EXPECT_EQ(eager.trainer->graph_steps(), 0);
  return graphs.trainer->graph_steps();
}

// All that changes from step to step: masks, rate, corrections, batches, what is measured.
TEST_F(TrainerOnCuda, GraphsTrainAsTheirOperationsDo) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.dropout = 0.1;
  job.train.log_every_steps = 3;
  job.train.steps = 20;
  job.train.gradient_clip_norm = 0.5;
  job.schedule.warmup_steps = 5;
  job.model.layers = 1;
  constexpr int64_t kSteps = kManySteps == 2 ? 6 : 20;
  // Two places of batches, with and without norms by group, have to be seen once each.
  EXPECT_EQ(CompareWithEager(job, TinyPlan("bf16_pure", 1, 2), data, kSteps), kSteps - 4);
}

TEST_F(TrainerOnCuda, GraphsFollowLossScalesAndFp8Scales) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.layers = 1;
  job.train.log_every_steps = 100;
  job.train.loss_scaling.initial = 0x1p24;
  job.train.gradient_noise_scale = true;
  int64_t skipped = 0;
  EXPECT_EQ(CompareWithEager(job, TinyPlan("fp16", 1, 2), data, 7, &skipped), 5);
  // The same graph skips updates and makes them.
  EXPECT_GT(skipped, 2);
  EXPECT_LT(skipped, 6);
  job.train.gradient_noise_scale = false;
  EXPECT_EQ(CompareWithEager(job, TinyPlan("fp8", 2), data, 5), 3);
  job.optimizer.name = "muon";
  EXPECT_EQ(CompareWithEager(job, TinyPlan("fp32", 2), data, 4), 2);
  for (const char* kind : {"monarch", "pixelfly"}) {
    EXPECT_EQ(CompareWithEager(StructuredJobOnCuda(kind, 2), TinyPlan("bf16", 2), data, 4), 2)
        << kind;
  }
}

// Each step draws its own roundings.
TEST_F(TrainerOnCuda, GraphsCompressActivationsAsTheirOperationsDo) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.layers = 1;
  job.train.log_every_steps = 100;
  Plan plan = TinyPlan("bf16", 1, 2);
  plan.activation_bits = 2;
  EXPECT_EQ(CompareWithEager(job, plan, data, 6), 4);
  plan.block_memory_policy = {"attention"};
  EXPECT_EQ(CompareWithEager(job, plan, data, 6), 4);
}

TEST_F(TrainerOnCuda, WhatCannotRepeatRunsWithoutGraphs) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.layers = 1;
  job.optimizer.name = "adafactor";
  EXPECT_EQ(CompareWithEager(job, TinyPlan("fp32", 2), data, 3), 0);
  JobSpec mixtral = JobOnCuda(2);
  mixtral.model.family = "llama";
  mixtral.model.kv_heads = 1;
  mixtral.model.layers = 1;
  mixtral.model.experts = 3;
  EXPECT_EQ(CompareWithEager(mixtral, TinyPlan("fp32", 2), data, 2), 0);
}

// A model with an operation that keeps a number of the step as it was when it was recorded.
class RecordedOnce : public Model {
 public:
  RecordedOnce(std::unique_ptr<Model> model, const ModelOptions& options)
      : Model(ModelSpec(), options), model_(std::move(model)) {}

  const ModelSpec& spec() const override { return model_->spec(); }
  const PrecisionRecipe& precision() const override { return model_->precision(); }
  ParameterSet& parameters() override { return model_->parameters(); }
  Status Pack(Context& context, Repack what) override { return model_->Pack(context, what); }
  Status Loss(Context& context, Tape& tape, const TokenBatch& batch,
              kernels::StepValue<float> gradient_scale, BatchLoss* total) const override {
    return model_->Loss(context, tape, batch,
                        gradient_scale.value * static_cast<float>(context.step + 1), total);
  }
  Result<Tensor> Logits(Context& context, const TokenBatch& batch) const override {
    return model_->Logits(context, batch);
  }

 private:
  std::unique_ptr<Model> model_;
};

// That the tests above would show it.
TEST_F(TrainerOnCuda, ANumberThatIsRecordedOnceShows) {
  RandomTokens data(50, 16);
  JobSpec job = JobOnCuda(2);
  job.model.layers = 1;
  job.train.log_every_steps = 100;
  const Plan plan = TinyPlan("fp32", 2);
  const auto make = [&](Context& context) -> Result<std::unique_ptr<Model>> {
    const ModelOptions options = ModelOptionsOf(plan, job.train);
    WEFT_ASSIGN_OR_RETURN(auto model, NewModel(context, job.model, options));
    return std::unique_ptr<Model>(new RecordedOnce(std::move(model), options));
  };
  DeviceRun graphs(job, plan, data, kCudaDevice, {.make = make}),
      eager(job, plan, data, kCudaDevice, {.graphs = false, .make = make});
  for (int64_t step = 0; step < 5; ++step) {
    const double got = graphs.Step().gradient_norm, want = eager.Step().gradient_norm;
    // Recorded in the third and fourth step, it is wrong from the fifth on.
    EXPECT_EQ(got == want, step < 4) << step;
  }
}

}  // namespace
}  // namespace weft::engine
