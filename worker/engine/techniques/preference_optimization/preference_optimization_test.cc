// Training by direct preference optimisation: its gradients, and that neither ranks nor a pause
// change them.
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kPairs = 6;

JobSpec DpoJob(int64_t global_batch) {
  JobSpec job = TinyJob(global_batch);
  job.train.preference = {.method = "dpo", .beta = 0.5, .label_smoothing = 0.1};
  job.schedule.kind = "constant";
  return job;
}

RandomPairs Pairs(int64_t global_batch) {
  return {TinyModel().vocab_size, TinyModel().context, kPairs, global_batch};
}

/// Log-probabilities of the targets of each sequence, from the logits, in f64.
std::vector<double> LogProbabilities(TinyRun& run, const Batch& batch) {
  const std::vector<float> logits = run.Logits(batch);
  const auto vocabulary = static_cast<size_t>(TinyModel().vocab_size);
  std::vector<double> sums(static_cast<size_t>(batch.sequences));
  for (size_t row = 0; row < batch.targets.size(); ++row) {
    if (batch.targets[row] == kernels::kIgnoreTarget) continue;
    const float* of_row = logits.data() + row * vocabulary;
    double sum = 0;
    for (size_t c = 0; c < vocabulary; ++c) sum += std::exp(static_cast<double>(of_row[c]));
    sums[row / static_cast<size_t>(batch.length)] += of_row[batch.targets[row]] - std::log(sum);
  }
  return sums;
}

/// Mean loss of the pairs, written out once more.
double Loss(const PreferenceSpec& spec, const std::vector<double>& own,
            const std::vector<double>& reference) {
  double sum = 0;
  for (size_t s = 0; s < own.size(); s += 2) {
    const double z = spec.beta * (own[s] - own[s + 1] - reference[s] + reference[s + 1]);
    sum += (1 - spec.label_smoothing) * std::log(1 + std::exp(-z)) +
           spec.label_smoothing * std::log(1 + std::exp(z));
  }
  return sum / (static_cast<double>(own.size()) / 2);
}

/// Adds `factor` times `direction` to the parameters.
void Move(TinyRun& run, const std::vector<float>& direction, double factor) {
  ParameterSet& parameters = run.model->parameters();
  size_t at = 0;
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const TensorView view = parameters.value(p);
    for (int64_t i = 0; i < view.shape.Elements(); ++i) {
      view.As<float>()[i] += static_cast<float>(factor * direction[at++]);
    }
  }
  WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
}

TEST(PreferenceOptimization, GradientsAreThoseOfTheLoss) {
  constexpr int64_t kBatch = 2 * kPairs;
  JobSpec job = DpoJob(kBatch);
  job.optimizer.name = "sgd";
  job.optimizer.momentum = 0;
  job.optimizer.weight_decay = 0;
  job.optimizer.learning_rate = 0.05;
  job.train.gradient_clip_norm = 0;
  RandomPairs pairs = Pairs(kBatch);
  const Batch batch = *pairs.Get(0, 0, kBatch);
  // Micro-batches have halves of pairs, too.
  TinyTraining training(job, TinyPlan("fp32", 3, 4), pairs);
  const std::vector<double> reference = LogProbabilities(training, batch);
  // The first step leaves the reference behind, the second one is measured.
  EXPECT_NEAR(training.Step().loss, std::log(2.0), 1e-6);
  const std::vector<float> before = training.Parameters();
  const std::vector<double> own = LogProbabilities(training, batch);
  const StepReport report = training.Step();
  EXPECT_NEAR(report.loss, Loss(job.train.preference, own, reference), 1e-5);
  EXPECT_LT(report.loss, std::log(2.0) - 1e-3);
  const std::vector<float> after = training.Parameters();
  std::vector<float> gradient;
  double square = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    gradient.push_back((before[i] - after[i]) / 0.05f);
    square += std::pow(gradient.back(), 2);
  }
  EXPECT_NEAR(std::sqrt(square), report.gradient_norm, 1e-3 * report.gradient_norm);

  // Along itself, and along a direction that has nothing to do with it.
  PhiloxStream random({.seed = 3});
  std::vector<float> other;
  double product = 0;
  for (const float g : gradient) {
    other.push_back(static_cast<float>(random.Normal() + 20 * g));
    product += other.back() * g;
  }
  const auto slope = [&](const std::vector<float>& direction, double step) {
    double losses[2];
    for (const int side : {0, 1}) {
      TinyRun moved(job.model, ModelOptionsOf(TinyPlan("fp32")));
      Move(moved, moved.Parameters(), -1);
      Move(moved, before, 1);
      Move(moved, direction, side == 0 ? step : -step);
      losses[side] = Loss(job.train.preference, LogProbabilities(moved, batch), reference);
    }
    return (losses[0] - losses[1]) / (2 * step);
  };
  EXPECT_NEAR(slope(gradient, 0.02 / std::sqrt(square)), square, 0.01 * square);
  EXPECT_NEAR(slope(other, 1e-3), product, 0.02 * std::abs(product));
}

TEST(PreferenceOptimization, RanksAndMicroBatchesDoNotMatter) {
  constexpr int64_t kBatch = 6;
  constexpr int kSteps = 5;
  JobSpec job = DpoJob(kBatch);
  std::vector<double> expected;
  std::vector<float> end;
  {
    RandomPairs pairs = Pairs(kBatch);
    TinyTraining alone(job, TinyPlan("fp32", 6), pairs);
    for (int step = 0; step < kSteps; ++step) expected.push_back(alone.Step().loss);
    expected.push_back(alone.trainer->Evaluate()->loss);
    end = alone.Parameters();
  }
  // A pair lies across micro-batches, and across ranks.
  for (const int64_t ranks : {1, 2}) {
    for (const int64_t micro_batch : {1, 3}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, micro-batch " << micro_batch);
      RunRanks(static_cast<int>(ranks), std::chrono::milliseconds(20000), [&](Collective& group) {
        RandomPairs pairs = Pairs(kBatch);
        Plan plan = TinyPlan("fp32", micro_batch, kBatch / ranks / micro_batch);
        plan.mesh.data = ranks;
        TinyRun run(job.model, ModelOptionsOf(plan));
        DataParallel reducer(&group, &run.model->parameters(), 4096);
        auto trainer = Trainer::New(job, plan,
                                    {.context = &run.context,
                                     .model = run.model.get(),
                                     .train = &pairs,
                                     .validation = &pairs,
                                     .reducer = ranks > 1 ? &reducer : nullptr,
                                     .rank = group.rank()});
        ASSERT_TRUE(trainer.ok()) << trainer.status().message();
        for (int step = 0; step < kSteps; ++step) {
          auto report = (*trainer)->Step();
          ASSERT_TRUE(report.ok()) << report.status().message();
          EXPECT_NEAR(report->loss, expected[static_cast<size_t>(step)], 1e-5);
        }
        auto evaluation = (*trainer)->Evaluate();
        ASSERT_TRUE(evaluation.ok()) << evaluation.status().message();
        EXPECT_NEAR(evaluation->loss, expected.back(), 1e-5);
        EXPECT_EQ(evaluation->targets, 2 * kPairs);
        const std::vector<float> values = run.Parameters();
        for (size_t i = 0; i < end.size(); ++i) ASSERT_NEAR(values[i], end[i], 1e-4) << i;
      });
    }
  }
}

TEST(PreferenceOptimization, AResumedTrainingIsTheSameBitForBit) {
  const JobSpec job = DpoJob(4);
  RandomPairs pairs = Pairs(4);
  TinyTraining whole(job, TinyPlan("fp32", 2, 2), pairs);
  for (int step = 0; step < 3; ++step) whole.Step();
  TinyTraining resumed(job, TinyPlan("fp32", 2, 2), pairs);
  const std::vector<NamedTensor> from = whole.trainer->StateTensors();
  const std::vector<NamedTensor> to = resumed.trainer->StateTensors();
  ASSERT_EQ(from.size(), to.size());
  size_t references = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].name, to[i].name);
    references += from[i].name.starts_with("preference/") ? 1 : 0;
    std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
  }
  EXPECT_EQ(references, 2u);
  ASSERT_TRUE(resumed.trainer->Restored(whole.trainer->counters()).ok());
  for (int step = 0; step < 3; ++step) {
    const StepReport expected = whole.Step(), found = resumed.Step();
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_EQ(found.technique_metrics, expected.technique_metrics);
  }
  EXPECT_EQ(resumed.Parameters(), whole.Parameters());
  EXPECT_EQ(resumed.trainer->Evaluate()->loss, whole.trainer->Evaluate()->loss);
}

TEST(PreferenceOptimization, MarginsGrow) {
  JobSpec job = DpoJob(2 * kPairs);
  job.train.preference.label_smoothing = 0;
  job.optimizer.learning_rate = 1e-3;
  RandomPairs pairs = Pairs(2 * kPairs);
  TinyTraining training(job, TinyPlan("fp32", 4, 3), pairs);
  EXPECT_NEAR(training.trainer->Evaluate()->loss, std::log(2.0), 1e-5);
  const auto first = training.Step().technique_metrics;
  EXPECT_NEAR(first.at("preference_reward_margin_nats"), 0, 1e-4);
  for (int step = 1; step < 40; ++step) training.Step();
  const auto last = training.Step().technique_metrics;
  EXPECT_GT(last.at("preference_reward_margin_nats"), 2);
  EXPECT_EQ(last.at("preference_reward_accuracy_ratio"), 1);
  EXPECT_NEAR(last.at("preference_chosen_reward_nats") - last.at("preference_rejected_reward_nats"),
              last.at("preference_reward_margin_nats"), 1e-9);
  EXPECT_LT(training.trainer->Evaluate()->loss, 0.2);
}

TEST(PreferenceOptimization, DataWithoutPairsAreRefused) {
  const JobSpec job = DpoJob(4);
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  TinyTraining training(job, TinyPlan("fp32"), tokens);
  const auto report = training.trainer->Step();
  EXPECT_EQ(report.status().code(), StatusCode::kInvalid);
  EXPECT_NE(report.status().message().find("whole sequences"), std::string::npos);
}

}  // namespace
}  // namespace weft::engine
