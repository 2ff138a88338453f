// Blocks that keep their tensors quantised.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

ModelSpec Spec(const char* family, double dropout) {
  ModelSpec spec = TinyModel();
  spec.family = family;
  spec.dropout = dropout;
  spec.attention_dropout = dropout;
  return spec;
}

ModelOptions Options(const PrecisionRecipe* precision, int64_t bits) {
  ModelOptions options;
  options.precision = precision;
  options.activation_bits = bits;
  return options;
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

Batch OneBatch() {
  return *RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(0, 0, 4);
}

TEST(ActivationCompressionTest, GradientsAreNearTheExactOnesAndTheirMeanIsNearer) {
  const Batch batch = OneBatch();
  for (const char* family : {"gpt2", "llama"}) {
    TinyRun exact(Spec(family, 0), Options(&kFp32Precision, 0));
    const double loss = exact.Differentiate(batch);
    const std::vector<float> truth = exact.Gradients();
    const double size = Norm({truth.begin(), truth.end()});
    // The error of one pass, as a share of the gradient.
    for (const auto& [bits, most] : {std::pair{8, 0.01}, std::pair{4, 0.15}, std::pair{2, 0.8}}) {
      SCOPED_TRACE(std::string(family) + ", " + std::to_string(bits) + " bits");
      TinyRun run(Spec(family, 0), Options(&kFp32Precision, bits));
      constexpr int kDraws = 64;
      std::vector<double> mean(truth.size());
      double error = 0;
      for (int draw = 0; draw < kDraws; ++draw, ++run.context.step) {
        EXPECT_EQ(run.Differentiate(batch), loss) << "the forward pass is exact";
        const std::vector<float> gradients = run.Gradients();
        std::vector<double> difference(truth.size());
        for (size_t i = 0; i < truth.size(); ++i) {
          difference[i] = static_cast<double>(gradients[i]) - truth[i];
          mean[i] += difference[i] / kDraws;
        }
        error += Norm(difference) / size / kDraws;
      }
      EXPECT_GT(error, 0);
      EXPECT_LT(error, most);
      // Without bias 1 / 8. Products are linear in what is kept, activations and norms are not.
      EXPECT_LT(Norm(mean) / size, error * (bits == 8 ? 0.2 : bits == 4 ? 0.3 : 0.6));
    }
  }
}

TEST(ActivationCompressionTest, AStepHasTheSameBitsEachTimeAndTakesLessMemory) {
  const Batch batch = OneBatch();
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    SCOPED_TRACE(std::string(precision->name));
    const ModelSpec spec = Spec("gpt2", 0.2);
    TinyRun exact(spec, Options(precision, 0));
    const double loss = exact.Differentiate(batch);
    TinyRun run(spec, Options(precision, 4));
    run.context.step = 7;
    EXPECT_NE(run.Differentiate(batch), loss) << "another step drops others";
    const std::vector<float> gradients = run.Gradients();
    run.context.step = 8;
    run.Differentiate(batch);
    EXPECT_NE(run.Gradients(), gradients);
    run.context.step = 7;
    run.Differentiate(batch);
    EXPECT_EQ(run.Gradients(), gradients);
    TinyRun resumed(spec, Options(precision, 4));
    resumed.context.step = 7;
    resumed.Differentiate(batch);
    EXPECT_EQ(resumed.Gradients(), gradients);
    EXPECT_LT(run.allocator.Peaks().activations_bytes, exact.allocator.Peaks().activations_bytes);
  }
}

// What is kept for a second forward pass is in bits, and so is what several blocks keep that are
// run again.
TEST(ActivationCompressionTest, BlocksAreRecomputedFromWhatIsKept) {
  const Batch batch = OneBatch();
  ModelSpec spec = Spec("gpt2", 0.2);
  spec.layers = 3;
  for (const auto& [policy, segment] :
       {std::pair{"attention", 1}, std::pair{"recompute", 1}, std::pair{"recompute", 2}}) {
    SCOPED_TRACE(std::string(policy) + " by " + std::to_string(segment));
    const auto options = [&, policy = policy, segment = segment](int64_t bits) {
      ModelOptions some = Options(&kFp32Precision, bits);
      some.block_memory_policy = std::vector<std::string>(3, policy);
      some.recompute_segment = segment;
      return some;
    };
    TinyRun exact(spec, options(0));
    const double loss = exact.Differentiate(batch);
    const std::vector<float> truth = exact.Gradients();
    for (const auto& [bits, most] : {std::pair{8, 0.006}, std::pair{4, 0.1}, std::pair{2, 0.5}}) {
      TinyRun run(spec, options(bits));
      EXPECT_EQ(run.Differentiate(batch), loss) << "the forward pass is exact";
      const std::vector<float> gradients = run.Gradients();
      std::vector<double> error(truth.size());
      for (size_t i = 0; i < truth.size(); ++i) {
        error[i] = static_cast<double>(gradients[i]) - truth[i];
      }
      const double share = Norm(error) / Norm({truth.begin(), truth.end()});
      EXPECT_GT(share, 0) << bits;
      EXPECT_LT(share, most) << bits;
      EXPECT_LT(run.allocator.Peaks().activations_bytes, exact.allocator.Peaks().activations_bytes);
      // Again, and resumed.
      run.Differentiate(batch);
      EXPECT_EQ(run.Gradients(), gradients);
      TinyRun resumed(spec, options(bits));
      resumed.Differentiate(batch);
      EXPECT_EQ(resumed.Gradients(), gradients);
    }
  }
}

TEST(ActivationCompressionTest, ARepeatedPatternIsLearntInAnyNumberOfBits) {
  CountingTokens tokens(7, 16);
  for (const int64_t bits : {8, 4, 2}) {
    JobSpec job = TinyJob(4);
    job.train.steps = 60;
    job.optimizer.learning_rate = 1e-2;
    job.optimizer.weight_decay = 0;
    Plan plan = TinyPlan("bf16", 2, 2);
    plan.activation_bits = bits;
    if (bits == 4) plan.block_memory_policy = {"recompute", "attention"};
    TinyTraining run(job, plan, tokens);
    const double first = run.Step().loss;
    double last = first;
    while (!run.trainer->finished()) last = run.Step().loss;
    EXPECT_NEAR(first, std::log(50.0), 0.2);
    EXPECT_LT(last, 0.2) << bits;
  }
}

}  // namespace
}  // namespace weft::engine
