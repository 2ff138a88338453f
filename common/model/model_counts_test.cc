#include "common/model/model_counts.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

const ModelShape kGpt2{12, 768, 12, 3072, 50257, 1024};

TEST(CountParameters, MatchesThePublishedSizesOfGpt2) {
  EXPECT_EQ(CountParameters(kGpt2).Total(), 124'439'808);
  EXPECT_EQ(CountParameters({24, 1024, 16, 4096, 50257, 1024}).Total(), 354'823'168);
  EXPECT_EQ(CountParameters({36, 1280, 20, 5120, 50257, 1024}).Total(), 774'030'080);
  EXPECT_EQ(CountParameters({48, 1600, 25, 6400, 50257, 1024}).Total(), 1'557'611'200);
  ModelShape padded = kGpt2;
  padded.vocab_size = 50304;
  EXPECT_EQ(CountParameters(padded).Total(), 124'475'904);
}

TEST(CountParameters, CountsATinyNetworkAsByHand) {
  ParameterCounts counts = CountParameters({2, 4, 2, 10, 7, 5});
  EXPECT_EQ(counts.token_embedding, 28);
  EXPECT_EQ(counts.position_embedding, 20);
  EXPECT_EQ(counts.attention, 2 * (48 + 12 + 16 + 4));
  EXPECT_EQ(counts.mlp, 2 * (40 + 10 + 40 + 4));
  EXPECT_EQ(counts.norms, 2 * 16 + 8);
}

TEST(TrainingFlops, MatchesTheCountingRule) {
  ModelShape padded = kGpt2;
  padded.vocab_size = 50304;
  // 6 N + 6 L C T at T = 1024: 803 MFLOP a token.
  EXPECT_NEAR(TrainingFlopsPerToken(padded, 1024), 803.5e6, 0.5e6);
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(padded, 1024), 6.0 * 124'475'904 + 6.0 * 12 * 768 * 1024);
  EXPECT_DOUBLE_EQ(ForwardFlopsPerToken(padded, 64) * 3, TrainingFlopsPerToken(padded, 64));
}

TEST(WeightGemms, CoverEveryWeightOnceInEachPass) {
  for (int64_t tokens : {1, 31, 64, 1024, 5000}) {
    const int64_t weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50304 * 768;
    std::map<GemmPass, double> flops;
    for (const Gemm& gemm : WeightGemms(kGpt2, tokens, 2)) flops[gemm.pass] += gemm.Flops();
    ASSERT_EQ(flops.size(), 3u);
    for (auto [pass, total] : flops) {
      EXPECT_DOUBLE_EQ(total, 2.0 * static_cast<double>(weights) * static_cast<double>(tokens));
    }
  }
}

TEST(WeightGemms, ChunksTheClassifierAndNothingElse) {
  // 64 MiB of bf16 logits are 667 rows of 50304; 1024 rows make two even chunks of 512.
  EXPECT_EQ(LogitsChunkRows(kGpt2, 1024, 2), 512);
  EXPECT_EQ(LogitsChunkRows(kGpt2, 100, 2), 128);
  EXPECT_EQ(LogitsChunkRows({1, 8, 1, 8, 1 << 24, 8}, 1024, 4), 32);
  for (const Gemm& gemm : WeightGemms(kGpt2, 1024, 2)) {
    const int64_t rows = gemm.pass == GemmPass::kWeightGradient ? gemm.k : gemm.m;
    EXPECT_EQ(rows, gemm.name == "classifier" ? 512 : 1024) << gemm.name;
    EXPECT_EQ(gemm.count, gemm.name == "classifier" ? 2 : 12) << gemm.name;
  }
}

TEST(ShapeOf, ResolvesWhatTheJobLeavesOpen) {
  JobSpec job;
  job.data.tokenizer.vocab_size = 1000;
  EXPECT_EQ(ShapeOf(job).vocab_size, 1024);
  EXPECT_EQ(ShapeOf(job).mlp_width, 4 * 384);
  job.data.tokenizer.path = "tokenizer.json";
  EXPECT_EQ(ShapeOf(job).vocab_size, 50304);
  job.model.vocab_size = 50257;
  EXPECT_EQ(ShapeOf(job).vocab_size, 50257);
  EXPECT_EQ(ShapeOf(job).PaddedVocabulary(), 50304);
}

}  // namespace
}  // namespace weft
