// The gradient noise scale of several ranks against its formula, from the gradient of each rank.
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/spec/shard_ranks.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/techniques/parallel/sharded_data_parallel.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using Doubles = std::vector<double>;

double Squares(const Doubles& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return sum;
}

constexpr int64_t kMicroBatch = 3;
constexpr int kSteps = 3;
// Some of the vocabulary alone: then there is a gradient besides the noise.
constexpr int64_t kTokensUsed = 8;

JobSpec MeasuredJob(int64_t batch) {
  JobSpec job = TinyJob(batch);
  job.train.gradient_noise_scale = true;
  job.optimizer.learning_rate = 0;  // each step's gradients are those of the first weights
  return job;
}

/// What the ranks of `plan` find in the end, by rank.
std::vector<std::optional<double>> FoundByRanks(const JobSpec& job, const Plan& plan) {
  constexpr int64_t kBucketBytes = 4096;
  std::vector<std::optional<double>> found(static_cast<size_t>(plan.mesh.data));
  RunRanks(static_cast<int>(plan.mesh.data), std::chrono::milliseconds(20000),
           [&](Collective& group) {
             RandomTokens tokens(kTokensUsed, TinyModel().context);
             ModelOptions options = ModelOptionsOf(plan, job.train);
             options.update_rank = group.rank() % ShardRanks(plan);
             TinyRun run(job.model, options);
             ParameterSet& parameters = run.model->parameters();
             std::unique_ptr<GradientReducer> reducer;
             if (plan.zero_stage == 0) {
               reducer = std::make_unique<DataParallel>(&group, &parameters, kBucketBytes);
             } else {
               auto made = ShardedDataParallel::New(run.context, &group, ShardRanks(plan),
                                                    &parameters, kBucketBytes, DType::kF32);
               ASSERT_TRUE(made.ok()) << made.status().message();
               reducer = *std::move(made);
             }
             auto trainer = Trainer::New(job, plan,
                                         {.context = &run.context,
                                          .model = run.model.get(),
                                          .train = &tokens,
                                          .reducer = reducer.get(),
                                          .rank = group.rank()});
             ASSERT_TRUE(trainer.ok()) << trainer.status().message();
             for (int step = 0; step < kSteps; ++step) {
               auto report = (*trainer)->Step();
               ASSERT_TRUE(report.ok()) << report.status().message();
               const auto& metrics = report->technique_metrics;
               const auto scale = metrics.find("gradient_noise_scale_sequences");
               if (scale == metrics.end()) continue;
               found[static_cast<size_t>(group.rank())] = scale->second;
             }
           });
  return found;
}

TEST(NoiseScaleTest, RanksOverGlooFindWhatTheFormulaSaysOfTheirGradients) {
  constexpr int kRanks = 2;
  for (const int64_t accumulation : {1, 2}) {
    SCOPED_TRACE(accumulation);
    const int64_t batch = kRanks * accumulation * kMicroBatch;
    const JobSpec job = MeasuredJob(batch);
    Plan plan = TinyPlan("fp32", kMicroBatch, accumulation);
    plan.mesh.data = kRanks;
    const std::vector<std::optional<double>> found = FoundByRanks(job, plan);

    // Mean gradients of sequences [first, first + count) of a step.
    RandomTokens tokens(kTokensUsed, TinyModel().context);
    TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
    const auto gradient = [&](int64_t step, int64_t first, int64_t count) {
      auto part = tokens.Get(step, first, count);
      WEFT_CHECK(part.ok(), "batch");
      run.Differentiate(*part, 1.0f / static_cast<float>(part->target_count), first);
      const std::vector<float> values = run.Gradients();
      return Doubles(values.begin(), values.end());
    };
    double noise = 0, square = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      double small = 0;
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        small += Squares(gradient(step, rank * accumulation * kMicroBatch, kMicroBatch)) / kRanks;
      }
      const double large = Squares(gradient(step, 0, batch));
      const double b = kMicroBatch;
      const auto whole = static_cast<double>(batch);
      noise = 0.99 * noise + 0.01 * (small - large) / (1 / b - 1 / whole);
      square = 0.99 * square + 0.01 * (whole * large - b * small) / (whole - b);
    }
    ASSERT_TRUE(found[0].has_value());
    EXPECT_EQ(found[1], found[0]);
    EXPECT_NEAR(*found[0], noise / square, 1e-3 * noise / square);
  }
}

// Ranks that update parts of what weights are made of measure the gradients of the weights, too:
// in one shard group and in two.
TEST(NoiseScaleTest, OfDerivedWeightsIsTheSameWhereRanksShardUpdates) {
  constexpr int kRanks = 4;
  JobSpec job = MeasuredJob(kRanks * kMicroBatch);
  job.model.over_parameterization = {"majority_kernels", {}, 1.0, 2};
  Plan plan = TinyPlan("fp32", kMicroBatch, 1);
  plan.mesh.data = kRanks;
  const std::vector<std::optional<double>> plain = FoundByRanks(job, plan);
  ASSERT_TRUE(plain[0].has_value());
  for (const int64_t stage : {1, 2}) {
    for (const int64_t shard_ranks : {0, 2}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", " + std::to_string(shard_ranks));
      plan.zero_stage = stage;
      plan.zero_shard_ranks = shard_ranks;
      for (const std::optional<double>& found : FoundByRanks(job, plan)) {
        ASSERT_TRUE(found.has_value());
        EXPECT_NEAR(*found, *plain[0], 1e-4 * *plain[0]);
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
