// Whole training runs by recipe: what they reach, what they survive, and that they repeat.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/spec/spec_json.h"
#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kLength = 32;

// English, a byte a token: sequences from all over the text.
class TextTokens : public BatchSource {
 public:
  TextTokens() {
    auto text = ReadFile(Env::Posix(), WEFT_SOURCE_DIR "/LICENSE");
    WEFT_CHECK(text.ok(), text.status().message());
    text_ = *text;
  }

  int64_t Sequences() const override { return 64; }
  Result<Batch> Get(int64_t step, int64_t first, int64_t count) override {
    std::vector<int32_t> stream;
    for (int64_t s = first; s < first + count; ++s) {
      PhiloxStream random({11, static_cast<uint32_t>(step), static_cast<uint32_t>(s)});
      const uint64_t at = random.Below(text_.size() - kLength);
      for (int64_t t = 0; t <= kLength; ++t) {
        stream.push_back(static_cast<unsigned char>(text_[at + static_cast<uint64_t>(t)]));
      }
    }
    return BatchOf(stream, kLength);
  }

 private:
  std::string text_;
};

JobSpec TextJob(double learning_rate) {
  JobSpec job = TinyJob(8);
  job.model.width = 64;
  job.model.vocab_size = 256;
  job.model.context = kLength;
  job.optimizer.learning_rate = learning_rate;
  job.optimizer.weight_decay = 0;
  job.schedule.kind = "constant";
  return job;
}

// The same batches for all: the whole loss curve.
std::vector<double> Losses(const JobSpec& job, const std::string& precision, int steps,
                           const std::function<void(TinyTraining&)>& after_step = {}) {
  TextTokens tokens;
  TinyTraining run(job, TinyPlan(precision, 8), tokens);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(run.Step().loss);
    if (after_step) after_step(run);
  }
  return losses;
}

double MeanOfLast(const std::vector<double>& losses, size_t count) {
  double sum = 0;
  for (size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
  return sum / static_cast<double>(count);
}

TEST(PrecisionTraining, MixedPrecisionReachesTheLossOfF32) {
  const JobSpec job = TextJob(1e-3);
  const std::vector<double> f32 = Losses(job, "fp32", 100);
  const double reached = MeanOfLast(f32, 10);
  EXPECT_LT(reached, 0.7 * f32[0]) << "it learns";
  for (const char* precision : {"bf16", "fp16"}) {
    EXPECT_NEAR(MeanOfLast(Losses(job, precision, 100), 10), reached, 0.005 * reached) << precision;
  }
}

TEST(PrecisionTraining, Fp8FollowsBf16WithDelayedAndWithCurrentScales) {
  JobSpec job = TextJob(1e-3);
  const std::vector<double> bf16 = Losses(job, "bf16", 100);
  const double reached = MeanOfLast(bf16, 10);
  const std::pair<const char*, const char*> choices[] = {{"delayed", "hybrid"},
                                                         {"current", "e4m3"}};
  for (const auto& [scaling, formats] : choices) {
    SCOPED_TRACE(scaling);
    job.train.fp8.scaling = scaling;
    job.train.fp8.formats = formats;
    job.train.fp8.history = 16;
    const std::vector<double> fp8 = Losses(job, "fp8", 100);
    EXPECT_NEAR(fp8[0], bf16[0], 0.005 * bf16[0]);
    EXPECT_NE(fp8[0], bf16[0]);
    EXPECT_NEAR(MeanOfLast(fp8, 10), reached, 0.02 * reached);
  }
}

TEST(PrecisionTraining, ExpertsInFp8FollowThoseInBf16) {
  JobSpec job = TextJob(1e-3);
  job.model.family = "llama";
  job.model.mlp_width = 64;
  job.model.experts = 4;
  const std::vector<double> bf16 = Losses(job, "bf16", 60);
  const std::vector<double> fp8 = Losses(job, "fp8", 60);
  const double reached = MeanOfLast(bf16, 10);
  EXPECT_LT(reached, 0.8 * bf16[0]) << "it learns";
  EXPECT_NEAR(fp8[0], bf16[0], 0.005 * bf16[0]);
  EXPECT_NE(fp8[0], bf16[0]);
  EXPECT_NEAR(MeanOfLast(fp8, 10), reached, 0.02 * reached);
}

// Trains a new model, and one whose blocks are left to bf16 except the second of three.
TEST(PrecisionTraining, Fp8GradientsAreThoseOfBf16UpToItsRoundings) {
  TextTokens tokens;
  JobSpec job = TextJob(1e-3);
  job.model.layers = 3;
  const auto gradients = [&](const char* precision) {
    TinyTraining run(job, TinyPlan(precision, 8), tokens);
    run.Step();
    return run.Gradients();
  };
  const std::vector<float> bf16 = gradients("bf16");
  const auto distance = [&](const std::vector<float>& other) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < bf16.size(); ++i) {
      difference += std::pow(static_cast<double>(other[i]) - bf16[i], 2);
      norm += std::pow(static_cast<double>(bf16[i]), 2);
    }
    return std::sqrt(difference / norm);
  };
  const double all = distance(gradients("fp8"));
  EXPECT_LT(all, 0.12);
  EXPECT_GT(all, 0.005) << "it is not bf16";
  job.train.fp8.bf16_first_blocks = job.train.fp8.bf16_last_blocks = 1;
  const double one = distance(gradients("fp8"));
  EXPECT_LT(one, 0.8 * all);
  EXPECT_GT(one, 0.002);
}

std::vector<float> StateOf(Trainer& trainer, const std::string& name) {
  for (const NamedTensor& tensor : trainer.StateTensors()) {
    if (tensor.name == name) return ValuesOf(tensor.view);
  }
  return {};
}

TEST(PrecisionTraining, Fp8OverflowsSaturateAndTheNextScalesMakeRoom) {
  TextTokens tokens;
  JobSpec job = TextJob(0);
  job.train.fp8.history = 2;
  TinyTraining run(job, TinyPlan("fp8", 8), tokens);
  for (int step = 0; step < 3; ++step) run.Step();
  const std::vector<float> before = StateOf(*run.trainer, "fp8/scales");
  ASSERT_EQ(before.size(), 16u) << "two blocks of four layers, inputs and gradients";
  // What the first layer reads becomes 64 times as large.
  const ParameterSet& parameters = run.model->parameters();
  for (const char* name : {"transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias"}) {
    const TensorView gain = parameters.value(parameters.Find(name).value());
    for (int64_t i = 0; i < gain.shape.Elements(); ++i) gain.As<float>()[i] *= 64;
  }
  const StepReport saturated = run.Step();
  EXPECT_TRUE(std::isfinite(saturated.loss));
  EXPECT_FALSE(saturated.skipped);
  const std::vector<float> after = StateOf(*run.trainer, "fp8/scales");
  EXPECT_NEAR(after[0] * 64 / before[0], 1, 0.2);
  // Two scales apart, the same data are the same except for roundings, and not what saturated.
  EXPECT_GT(std::abs(run.Step().loss - saturated.loss), 1e-3);
}

// Matrices as bf16 would hold them when updates are rounded to nearest.
void RoundToNearest(TinyTraining& run) {
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].shape.rank < 2) continue;
    const TensorView value = parameters.value(p);
    for (int64_t i = 0; i < value.shape.Elements(); ++i) {
      value.As<float>()[i] = ToFloat(ToBFloat16(value.As<float>()[i]));
    }
  }
  ASSERT_TRUE(run.trainer->Restored(run.trainer->counters()).ok());  // packs again
}

TEST(PrecisionTraining, StochasticRoundingFollowsF32WhereRoundingToNearestStalls) {
  const JobSpec job = TextJob(1e-5);
  const auto gain = [](const std::vector<double>& losses) {
    return losses[0] - MeanOfLast(losses, 10);
  };
  const double f32 = gain(Losses(job, "fp32", 150));
  const double stochastic = gain(Losses(job, "bf16_pure", 150));
  const double nearest = gain(Losses(job, "bf16", 150, RoundToNearest));
  EXPECT_GT(f32, 0.05);
  EXPECT_NEAR(stochastic, f32, 0.1 * f32);
  EXPECT_LT(nearest, 0.5 * f32);
}

TEST(PrecisionTraining, HalfMatricesTakeHalfTheMemoryAndKeepF32Vectors) {
  TextTokens tokens;
  TinyTraining pure(TextJob(1e-3), TinyPlan("bf16_pure", 8), tokens);
  const ParameterSet& parameters = pure.model->parameters();
  size_t bytes = 0;
  for (int64_t p = 0; p < parameters.size(); ++p) {
    EXPECT_EQ(parameters.value(p).dtype,
              parameters[p].shape.rank >= 2 ? DType::kBF16 : DType::kF32);
    bytes += parameters.value(p).Bytes();
  }
  EXPECT_LT(static_cast<double>(bytes), 0.53 * 4 * static_cast<double>(parameters.ElementCount()));
  // Initial weights are those of other recipes, rounded.
  TinyRun full(TextJob(1e-3).model, {&kFp32Precision, false, {}});
  const auto expected = ValuesOf(full.model->parameters());
  const auto got = ValuesOf(parameters);
  for (size_t p = 0; p < got.size(); ++p) {
    const bool matrix = parameters[static_cast<int64_t>(p)].shape.rank >= 2;
    for (size_t i = 0; i < got[p].size(); ++i) {
      ASSERT_EQ(got[p][i], matrix ? ToFloat(ToBFloat16(expected[p][i])) : expected[p][i]);
    }
  }
}

// State and counters as a checkpoint carries them.
std::unique_ptr<TinyTraining> Copy(const TinyTraining& from, const JobSpec& job, const Plan& plan,
                                   BatchSource& tokens) {
  auto copy = std::make_unique<TinyTraining>(job, plan, tokens);
  const auto source = from.trainer->StateTensors();
  const auto target = copy->trainer->StateTensors();
  WEFT_CHECK(source.size() == target.size(), "state");
  for (size_t i = 0; i < source.size(); ++i) {
    WEFT_CHECK(source[i].name == target[i].name && source[i].view.dtype == target[i].view.dtype,
               source[i].name);
    std::memcpy(target[i].view.data, source[i].view.data, source[i].view.Bytes());
  }
  auto json = ParseJson(ToJson(from.trainer->counters()).dump());
  WEFT_CHECK(json.ok(), "json");
  auto counters = FromJson<TrainCounters>(*json);
  WEFT_CHECK(counters.ok(), counters.status().message());
  EXPECT_TRUE(copy->trainer->Restored(*counters).ok());
  return copy;
}

TEST(PrecisionTraining, RunsResumeBitForBitInEveryRecipe) {
  TextTokens tokens;
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    SCOPED_TRACE(precision->name);
    JobSpec job = TextJob(1e-3);
    job.model.dropout = 0.1;
    const Plan plan = TinyPlan(std::string(precision->name), 4, 2);
    TinyTraining original(job, plan, tokens);
    for (int i = 0; i < 3; ++i) original.Step();
    const std::unique_ptr<TinyTraining> copy = Copy(original, job, plan, tokens);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(copy->Step().loss, original.Step().loss);
    EXPECT_EQ(copy->Parameters(), original.Parameters());
  }
}

TEST(PrecisionTraining, EveryOptimizerAndAverageTrainsAndResumesWithoutF32Masters) {
  TextTokens tokens;
  const std::pair<const char*, const char*> choices[] = {
      {"adafactor", "none"}, {"muon", "none"},  {"schedule_free_adamw", "none"},
      {"adamw", "ema"},      {"adamw", "lawa"}, {"muon", "ema"}};
  for (const auto& [optimizer, averaging] : choices) {
    SCOPED_TRACE(std::string(optimizer) + " " + averaging);
    JobSpec job = TextJob(optimizer == std::string("adafactor") ? 1e-2 : 1e-3);
    job.optimizer.name = optimizer;
    job.train.averaging.kind = averaging;
    job.train.averaging.decay = 0.8;
    job.train.averaging.every_steps = 1;
    job.train.averaging.window = 4;
    job.train.eval_sequences = 8;
    TinyTraining f32(job, TinyPlan("fp32", 8), tokens);
    TinyTraining pure(job, TinyPlan("bf16_pure", 8), tokens);
    const double first = pure.Step().loss;
    f32.Step();
    for (int i = 0; i < 29; ++i) {
      f32.Step();
      pure.Step();
    }
    const double reached = f32.trainer->Evaluate()->loss;
    const std::vector<float> before = pure.Parameters();
    EXPECT_NEAR(pure.trainer->Evaluate()->loss, reached, 0.02 * reached);
    EXPECT_LT(reached, first - 0.2);
    EXPECT_EQ(pure.Parameters(), before) << "an evaluation leaves nothing behind";
    const std::unique_ptr<TinyTraining> copy = Copy(pure, job, TinyPlan("bf16_pure", 8), tokens);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(copy->Step().loss, pure.Step().loss);
    EXPECT_EQ(copy->trainer->Evaluate()->loss, pure.trainer->Evaluate()->loss);
    EXPECT_EQ(copy->Parameters(), pure.Parameters());
  }
}

TEST(PrecisionTraining, AScaleThatOverflowsBacksOffAndResumesInTheMiddle) {
  TextTokens tokens;
  JobSpec job = TextJob(1e-3);
  job.train.loss_scaling = {.initial = 0x1p40, .growth = 4, .backoff = 0.25, .growth_interval = 3};
  const Plan plan = TinyPlan("fp16", 8);
  TinyTraining run(job, plan, tokens);
  const std::vector<float> start = run.Parameters();
  StepReport report = run.Step();
  EXPECT_TRUE(report.skipped && report.overflow);
  EXPECT_EQ(report.loss_scale, 0x1p40);
  EXPECT_GT(report.non_finite_gradients, 0);
  EXPECT_TRUE(std::isfinite(report.loss)) << "the forward pass does not see the scale";
  EXPECT_EQ(run.Parameters(), start);
  EXPECT_EQ(run.trainer->counters().loss_scale.scale, 0x1p38);

  const std::unique_ptr<TinyTraining> copy = Copy(run, job, plan, tokens);
  int updates = 0, overflows = 1;
  for (int i = 0; i < 40; ++i) {
    report = run.Step();
    const StepReport again = copy->Step();
    EXPECT_EQ(again.loss, report.loss);
    // Without an overflow; NaN is not equal to itself.
    if (!report.overflow) {
      EXPECT_EQ(again.gradient_norm, report.gradient_norm);
    }
    EXPECT_EQ(again.loss_scale, report.loss_scale);
    EXPECT_EQ(again.overflow, report.overflow);
    EXPECT_EQ(report.overflow, report.skipped);
    updates += report.skipped ? 0 : 1;
    overflows += report.overflow ? 1 : 0;
  }
  EXPECT_EQ(copy->Parameters(), run.Parameters());
  EXPECT_GT(updates, 15);
  EXPECT_GT(overflows, 10) << "growing until it overflows again";
  EXPECT_EQ(run.trainer->counters().overflows, overflows);
  EXPECT_EQ(run.trainer->counters().skipped_steps, overflows);
  EXPECT_EQ(run.trainer->counters().updates, updates);
  EXPECT_EQ(run.trainer->counters().loss_scale, copy->trainer->counters().loss_scale);
}

TEST(PrecisionTraining, TheScaleChangesNoReportAndHardlyAGradient) {
  TextTokens tokens;
  const auto first_step = [&](double scale) {
    JobSpec job = TextJob(1e-3);
    job.train.loss_scaling.initial = scale;
    TinyTraining run(job, TinyPlan("fp16", 8), tokens);
    const StepReport report = run.Step();
    std::vector<float> gradients = run.Gradients();
    for (float& value : gradients) value /= static_cast<float>(scale);
    return std::pair(report, gradients);
  };
  const auto [small, small_gradients] = first_step(256);
  const auto [large, large_gradients] = first_step(65536);
  EXPECT_EQ(small.loss, large.loss);
  EXPECT_NEAR(small.gradient_norm, large.gradient_norm, 2e-3 * large.gradient_norm);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < small_gradients.size(); ++i) {
    difference += std::pow(small_gradients[i] - large_gradients[i], 2.0);
    norm += std::pow(large_gradients[i], 2.0);
  }
  EXPECT_LT(std::sqrt(difference / norm), 2e-2);
}

TEST(PrecisionTraining, RanksStayAlikeAndSkipTogether) {
  constexpr int kRanks = 2;
  for (const char* precision : {"bf16_pure", "fp16", "fp8"}) {
    SCOPED_TRACE(precision);
    std::vector<float> parameters[kRanks], scales[kRanks], magnitudes[kRanks];
    TrainCounters counters[kRanks];
    RunRanks(kRanks, std::chrono::milliseconds(20000), [&](Collective& group) {
      TextTokens tokens;
      JobSpec job = TextJob(1e-3);
      Plan plan = TinyPlan(precision, 4);
      plan.mesh.data = kRanks;
      TinyRun run(job.model, ModelOptionsOf(plan));
      ParameterSet& own = run.model->parameters();
      DataParallel reducer(&group, &own, 1 << 16);
      auto trainer = Trainer::New(job, plan,
                                  {.context = &run.context,
                                   .model = run.model.get(),
                                   .train = &tokens,
                                   .reducer = &reducer,
                                   .rank = group.rank()});
      ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
      for (int step = 0; step < 5; ++step) {
        // Once, the gradients of one rank alone are not finite.
        float* bias = own.value(own.size() - 1).As<float>();
        const float before = *bias;
        if (step == 2 && group.rank() == 1) *bias = std::numeric_limits<float>::quiet_NaN();
        const auto report = (*trainer)->Step();
        ASSERT_TRUE(report.ok()) << report.status().ToString();
        EXPECT_EQ(report->skipped, step == 2);
        if (step == 2) *bias = before;
      }
      parameters[group.rank()] = run.Parameters();
      counters[group.rank()] = (*trainer)->counters();
      scales[group.rank()] = StateOf(**trainer, "fp8/scales");
      magnitudes[group.rank()] = StateOf(**trainer, "fp8/magnitudes");
    });
    EXPECT_EQ(parameters[0], parameters[1]);
    EXPECT_EQ(scales[0], scales[1]);
    EXPECT_EQ(magnitudes[0], magnitudes[1]);
    EXPECT_EQ(scales[0].empty(), PrecisionOf(precision).block_products == nullptr);
    EXPECT_EQ(counters[0].updates, 4);
    for (const TrainCounters& of_rank : counters) {
      EXPECT_EQ(of_rank.skipped_steps, 1);
      EXPECT_EQ(of_rank.overflows, PrecisionOf(precision).loss_scaling ? 1 : 0);
      EXPECT_EQ(of_rank.loss_scale, counters[0].loss_scale);
    }
  }
}

}  // namespace
}  // namespace weft::engine
