// The gradient noise scale of several ranks against its formula, from the gradient of each rank.
#include <chrono>
#include <cmath>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
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

TEST(NoiseScaleTest, RanksOverGlooFindWhatTheFormulaSaysOfTheirGradients) {
  constexpr int kRanks = 2;
  constexpr int kSteps = 3;
  // Some of the vocabulary alone: then there is a gradient besides the noise.
  constexpr int64_t kTokensUsed = 8;
  for (const int64_t accumulation : {1, 2}) {
    SCOPED_TRACE(accumulation);
    constexpr int64_t kMicroBatch = 3;
    const int64_t batch = kRanks * accumulation * kMicroBatch;
    JobSpec job = TinyJob(batch);
    job.train.gradient_noise_scale = true;
    job.optimizer.learning_rate = 0;  // each step's gradients are those of the first weights

    std::optional<double> found[kRanks];
    RunRanks(kRanks, std::chrono::milliseconds(20000), [&](Collective& group) {
      RandomTokens tokens(kTokensUsed, TinyModel().context);
      Plan plan = TinyPlan("fp32", kMicroBatch, accumulation);
      plan.mesh.data = kRanks;
      TinyRun run(job.model, ModelOptionsOf(plan));
      DataParallel reducer(&group, &run.model->parameters(), 4096);
      auto trainer = Trainer::New(job, plan,
                                  {.context = &run.context,
                                   .model = run.model.get(),
                                   .train = &tokens,
                                   .reducer = &reducer,
                                   .rank = group.rank()});
      ASSERT_TRUE(trainer.ok()) << trainer.status().message();
      for (int step = 0; step < kSteps; ++step) {
        auto report = (*trainer)->Step();
        ASSERT_TRUE(report.ok()) << report.status().message();
        const auto& metrics = report->technique_metrics;
        const auto scale = metrics.find("gradient_noise_scale_sequences");
        if (scale != metrics.end()) found[group.rank()] = scale->second;
      }
    });

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

}  // namespace
}  // namespace weft::engine
