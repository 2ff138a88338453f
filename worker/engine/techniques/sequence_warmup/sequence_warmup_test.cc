// Sequence-length warm-up against trainings on sequences that were shorter to begin with.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_counts.h"
#include "common/model/step_extent.h"
#include "common/model/technique_cost.h"
#include "worker/engine/techniques/sequence_warmup/sequence_warmup_cost.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/engine/train/first_tokens.h"

namespace weft::engine {
namespace {

constexpr int64_t kLength = 40;
constexpr int64_t kStart = 8;
constexpr int64_t kWarmup = 4;
/// Lengths in the steps of Job(): 8 + 32 s / 4, in multiples of 8.
constexpr int64_t kLengths[] = {8, 16, 24, 32, 40, 40};

JobSpec Job() {
  JobSpec job = TinyJob(4);
  job.model.context = kLength;
  job.train.steps = std::ssize(kLengths);
  job.train.sequence_warmup_start = kStart;
  job.train.sequence_warmup_steps = kWarmup;
  return job;
}

/// The first tokens of the sequences of RandomTokens in each step.
class ShorterTokens : public BatchSource {
 public:
  explicit ShorterTokens(const ModelSpec& model) : whole_(model.vocab_size, kLength) {}

  int64_t Sequences() const override { return whole_.Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    const Batch whole = *whole_.Get(step, first_sequence, count);
    const int64_t length = kLengths[step];
    std::vector<int32_t> stream;
    for (int64_t s = 0; s < count; ++s) {
      const auto first = whole.tokens.begin() + s * kLength;
      stream.insert(stream.end(), first, first + length);
      stream.push_back(whole.targets[static_cast<size_t>(s * kLength + length - 1)]);
    }
    return BatchOf(stream, length);
  }

 private:
  RandomTokens whole_;
};

TEST(SequenceWarmup, LengthsRiseLinearlyInMultiplesOfEight) {
  TrainSpec train;
  train.sequence_warmup_start = 64;
  train.sequence_warmup_steps = 1000;
  // As DeepSpeed's fixed_linear schedule: 64 + 960 s / 1000, less what is left over by 8.
  const std::pair<int64_t, int64_t> lengths[] = {{0, 64},     {8, 64},      {9, 72},     {500, 544},
                                                 {999, 1016}, {1000, 1024}, {9000, 1024}};
  for (const auto& [step, length] : lengths) {
    EXPECT_EQ(WarmedUpLength(train, step, 1024), length) << step;
  }
  EXPECT_EQ(WarmedUpLength(train, 1000, 1021), 1021) << "the whole length need be no multiple";
  EXPECT_EQ(WarmedUpLength(TrainSpec(), 0, 1024), 1024);
}

TEST(SequenceWarmup, AStepIsOneOnShorterSequencesBitForBit) {
  JobSpec job = Job();
  job.model.dropout = 0.1;
  JobSpec plain = job;
  plain.train.sequence_warmup_start = plain.train.sequence_warmup_steps = 0;
  RandomTokens whole(job.model.vocab_size, kLength);
  ShorterTokens shorter(job.model);
  TinyTraining warmed(job, TinyPlan("fp32", 2, 2), whole);
  TinyTraining truth(plain, TinyPlan("fp32", 2, 2), shorter);
  TinyTraining one_by_one(job, TinyPlan("fp32", 1, 4), whole);
  for (const int64_t length : kLengths) {
    const StepReport report = warmed.Step();
    EXPECT_EQ(report.loss, truth.Step().loss) << length;
    EXPECT_NEAR(report.loss, one_by_one.Step().loss, 1e-5) << "the same is dropped";
    EXPECT_EQ(report.tokens, 4 * length);
    EXPECT_EQ(report.targets, 4 * length);
  }
  EXPECT_EQ(warmed.Parameters(), truth.Parameters());
}

TEST(SequenceWarmup, DocumentsOfTheFirstTokensStayMaskedFromEachOther) {
  std::vector<int32_t> stream;
  for (int32_t i = 0; i < 2 * 17; ++i) stream.push_back(i);
  Batch whole = BatchOf(stream, 16);
  whole.sequence_starts = {0, 3, 12, 16, 24, 32};
  whole.lengths = {16, 16};
  whole.targets[18] = kernels::kIgnoreTarget;
  const Batch cut = FirstTokens(whole, 8);
  EXPECT_THAT(cut.sequence_starts, testing::ElementsAre(0, 3, 8, 16));
  EXPECT_EQ(cut.tokens[8], 17) << "the first of the second sequence";
  EXPECT_THAT(cut.lengths, testing::ElementsAre(8, 8));
  EXPECT_EQ(cut.target_count, 15);
  EXPECT_EQ(cut.stride, 8);
}

TEST(SequenceWarmup, EvaluationIsOfWholeSequences) {
  const JobSpec job = Job();
  JobSpec plain = job;
  plain.train.sequence_warmup_start = plain.train.sequence_warmup_steps = 0;
  RandomTokens tokens(job.model.vocab_size, kLength);
  TinyTraining warmed(job, TinyPlan("fp32"), tokens), truth(plain, TinyPlan("fp32"), tokens);
  EXPECT_EQ(warmed.trainer->Evaluate()->loss, truth.trainer->Evaluate()->loss);
}

TEST(SequenceWarmup, ARestoredStateGoesOnBitForBit) {
  const JobSpec job = Job();
  RandomTokens tokens(job.model.vocab_size, kLength);
  TinyTraining original(job, TinyPlan("bf16", 2, 2), tokens);
  for (int i = 0; i < 2; ++i) original.Step();
  TinyTraining copy(job, TinyPlan("bf16", 2, 2), tokens);
  const auto from = original.trainer->StateTensors(), to = copy.trainer->StateTensors();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
  }
  ASSERT_TRUE(copy.trainer->Restored(original.trainer->counters()).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(copy.Step().loss, original.Step().loss);
  EXPECT_EQ(copy.Parameters(), original.Parameters());
}

TEST(SequenceWarmup, MeshesTrainAsOneRankDoes) {
  const std::pair<const char*, void (*)(Plan&)> ways[] = {
      {"data 4", [](Plan& p) { p.mesh.data = 4; }},
      {"zero 3", [](Plan& p) { p.mesh.data = 2, p.zero_stage = 3; }},
      {"tensor 2 with sequence", [](Plan& p) { p.mesh.tensor = 2, p.sequence_parallel = true; }},
      {"pipeline 2 x data 2, recomputed",
       [](Plan& p) {
         p.mesh.data = p.mesh.pipeline = 2;
         p.stage_blocks = {1, 1};
         p.block_memory_policy = {"recompute", "recompute"};
       }},
  };
  for (const auto& [name, change] : ways) {
    SCOPED_TRACE(name);
    MeshCase c{Job(), TinyPlan("fp32", 2, 1)};
    c.job.train.global_batch = 8;
    c.job.train.steps = 3;
    c.job.train.sequence_warmup_steps = 2;
    c.job.model.dropout = 0.1;
    change(c.plan);
    c.plan.accumulation_steps = 8 / c.plan.micro_batch / c.plan.mesh.data;
    ExpectFollows(TrainOnMesh(c), TrainOnMesh(c.Whole())[0], 1e-5, 1e-4);
  }
}

TEST(SequenceWarmup, TheWorkOfShorterSequencesIsCounted) {
  const JobSpec job = Job();
  const ModelShape shape = ShapeOf(job);
  double flops = 0, tokens = 0;
  for (const int64_t length : kLengths) {
    tokens += static_cast<double>(length);
    flops += static_cast<double>(length) * TrainingFlopsPerToken(shape, length);
  }
  EXPECT_DOUBLE_EQ(MeanFlopsPerToken(job, std::ssize(kLengths)), flops / tokens);
  const MeanStep mean = MeanStepOf(job);
  EXPECT_DOUBLE_EQ(mean.tokens, tokens / (6.0 * kLength));
  EXPECT_DOUBLE_EQ(mean.flops, flops / (6.0 * kLength * TrainingFlopsPerToken(shape, kLength)));
}

TEST(SequenceWarmup, RefusesLengthsThatCannotGrow) {
  const auto error = [](int64_t start, int64_t steps) {
    JobSpec job = Job();
    job.data.train = {"a.txt"};
    job.train.sequence_warmup_start = start;
    job.train.sequence_warmup_steps = steps;
    return ValidateJob(job).message();
  };
  EXPECT_EQ(error(8, 4), "");
  EXPECT_EQ(error(0, 0), "");
  EXPECT_THAT(error(0, 4), testing::HasSubstr("go together"));
  EXPECT_THAT(error(8, 0), testing::HasSubstr("go together"));
  EXPECT_THAT(error(12, 4), testing::HasSubstr("multiple of 8 below the 40 tokens"));
  EXPECT_THAT(error(40, 4), testing::HasSubstr("multiple of 8 below the 40 tokens"));
  EXPECT_THAT(error(8, 7), testing::HasSubstr("is more than train.steps 6"));
}

}  // namespace
}  // namespace weft::engine
