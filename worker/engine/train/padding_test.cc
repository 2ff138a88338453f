// Whichever way rows are padded, the same is learnt.
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "common/spec/padded_length.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/testing.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

struct Outcome {
  std::vector<float> parameters;
  double loss = 0;
  int64_t tokens = 0;
  int64_t padding = 0;
  int64_t targets = 0;
};

/// Trains two epochs of twelve documents, each a step of three micro-batches.
Outcome Train(const TokenSpan& span, Batching batching, int32_t padding_token) {
  JobSpec job = TinyJob(12);
  job.optimizer.name = "sgd";  // no division that makes much of rounding
  job.optimizer.learning_rate = 0.1;
  const LoaderOptions options{.length = 16,
                              .global_batch = 12,
                              .seed = 3,
                              .batching = batching,
                              .padding_token = padding_token};
  auto loader = TokenLoader::Create(span, options);
  EXPECT_TRUE(loader.ok()) << loader.status().ToString();
  TinyTraining run(job, TinyPlan("fp32", 4, 3), **loader);
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    const StepReport report = run.Step();
    outcome.loss += report.loss;
    outcome.tokens += report.tokens;
    outcome.padding += report.padding_tokens;
    outcome.targets += report.targets;
  }
  EXPECT_EQ(run.trainer->counters().tokens, outcome.tokens - outcome.padding)
      << "padding is nothing that is trained on";
  outcome.parameters = run.Parameters();
  return outcome;
}

TEST(PaddedTraining, LearnsTheSameHoweverRowsArePadded) {
  PhiloxStream random({11, 0, 0});
  std::vector<std::vector<int32_t>> documents;
  for (int32_t length : {14, 8, 5, 6, 7, 13, 9, 11, 4, 13, 12, 5}) {
    documents.emplace_back();
    for (int32_t t = 0; t < length; ++t) {
      documents.back().push_back(static_cast<int32_t>(random.Below(40)));
    }
  }
  const TokenSpan span = MakeSpan(documents);
  const Outcome fixed = Train(span, Batching::kPadFixed, 41);
  EXPECT_EQ(fixed.tokens, 2 * 12 * 16);
  EXPECT_EQ(fixed.tokens - fixed.padding, 2 * 107);
  EXPECT_EQ(fixed.targets, 2 * (107 - 12));
  // What padding looks like changes nothing at all.
  const Outcome other_token = Train(span, Batching::kPadFixed, 42);
  EXPECT_EQ(other_token.loss, fixed.loss);
  for (Batching batching : {Batching::kPadDynamic, Batching::kPadUniform}) {
    const Outcome outcome = Train(span, batching, 41);
    EXPECT_EQ(outcome.targets, fixed.targets);
    EXPECT_LT(outcome.tokens, fixed.tokens);
    EXPECT_NEAR(outcome.loss, fixed.loss, 1e-6 * fixed.loss);
    ASSERT_EQ(outcome.parameters.size(), fixed.parameters.size());
    for (size_t i = 0; i < fixed.parameters.size(); ++i) {
      ASSERT_NEAR(outcome.parameters[i], fixed.parameters[i], 1e-6);
    }
  }
}

// Micro-batches have lengths of their own, in steps of 8 tokens, and all of them are partitioned.
TEST(PaddedTraining, IsTheSameOnRanksThatPartitionTheTokens) {
  constexpr int64_t kMostTokens = 32;
  std::vector<std::vector<int32_t>> documents;
  PhiloxStream random({11, 0, 0});
  for (const int32_t length : {3, 30, 8, 5, 6, 12, 21, 9, 11, 4, 13, 17}) {
    documents.emplace_back();
    for (int32_t t = 0; t < length; ++t) {
      documents.back().push_back(static_cast<int32_t>(random.Below(40)));
    }
  }
  const TokenSpan span = MakeSpan(documents);
  const std::pair<const char*, Batching> paddings[] = {{"pad_dynamic", Batching::kPadDynamic},
                                                       {"pad_uniform", Batching::kPadUniform}};
  for (const auto& [name, batching] : paddings) {
    SCOPED_TRACE(name);
    const LoaderOptions options{.length = kMostTokens,
                                .global_batch = 4,
                                .seed = 3,
                                .batching = batching,
                                .padding_token = 41,
                                .length_multiple = kPaddedLengthMultiple};
    MeshCase c{TinyJob(4), TinyPlan("fp32", 2, 2)};
    c.job.model.heads = 4;
    c.job.model.context = kMostTokens;
    c.job.model.dropout = c.job.model.attention_dropout = 0.1;
    c.job.data.batching = name;
    c.job.train.steps = 3;
    c.job.train.eval_sequences = 4;
    c.plan.mesh.tensor = 4;
    c.plan.sequence_parallel = true;
    c.tokens = [&] { return *TokenLoader::Create(span, options); };
    const MeshOutcome whole = TrainOnMesh(c.Whole())[0];
    int64_t tokens = 0;
    for (const StepReport& report : whole.reports) tokens += report.tokens;
    EXPECT_LT(tokens, 3 * 4 * kMostTokens) << "some are shorter";
    ExpectFollows(TrainOnMesh(c), whole, 1e-5, 1e-4);
  }
}

}  // namespace
}  // namespace weft::engine
