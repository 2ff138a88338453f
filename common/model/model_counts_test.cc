#include "common/model/model_counts.h"

#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

ModelSpec Gpt2(int64_t layers = 12, int64_t width = 768) {
  ModelSpec model;
  model.layers = layers;
  model.width = width;
  model.heads = width / 64;
  model.vocab_size = 50257;
  model.context = 1024;
  return model;
}

ModelShape Padded() {
  ModelSpec model = Gpt2();
  model.vocab_size = 50304;
  return ModelShape(model);
}

const ModelShape kGpt2{Gpt2()};

TEST(ParameterCounts, MatchThePublishedSizesOfGpt2) {
  EXPECT_EQ(kGpt2.counts.Total(), 124'439'808);
  EXPECT_EQ(ModelShape(Gpt2(24, 1024)).counts.Total(), 354'823'168);
  EXPECT_EQ(ModelShape(Gpt2(36, 1280)).counts.Total(), 774'030'080);
  EXPECT_EQ(ModelShape(Gpt2(48, 1600)).counts.Total(), 1'557'611'200);
  EXPECT_EQ(Padded().counts.Total(), 124'475'904);
}

TEST(ParameterCounts, MatchThePublishedSizesOfLlamaMistralAndQwen2) {
  ModelSpec model;
  model.family = "llama";
  model.untied_classifier = true;
  const auto count = [&](int64_t layers, int64_t width, int64_t heads, int64_t kv_heads,
                         int64_t mlp_width, int64_t vocab_size) {
    model.layers = layers;
    model.width = width;
    model.heads = heads;
    model.kv_heads = kv_heads;
    model.mlp_width = mlp_width;
    model.vocab_size = vocab_size;
    return ModelShape(model).counts.Total();
  };
  EXPECT_EQ(count(32, 4096, 32, 0, 11008, 32000), 6'738'415'616) << "Llama 2 7B";
  EXPECT_EQ(count(32, 4096, 32, 8, 14336, 128256), 8'030'261'248) << "Llama 3 8B";
  EXPECT_EQ(count(32, 4096, 32, 8, 14336, 32000), 7'241'732'096) << "Mistral 7B";
  model.head_width = 128;
  EXPECT_EQ(count(40, 5120, 32, 8, 14336, 131072), 12'247'782'400) << "Mistral NeMo 12B";
  model.head_width = 0;
  model.untied_classifier = false;
  EXPECT_EQ(count(16, 2048, 32, 8, 8192, 128256), 1'235'814'400) << "Llama 3.2 1B";
  model.qkv_bias = true;
  EXPECT_EQ(count(24, 896, 14, 2, 4864, 151936), 494'032'768) << "Qwen2 0.5B";
}

ModelSpec Mixtral8x7B() {
  ModelSpec model;
  model.family = "llama";
  model.layers = 32;
  model.width = 4096;
  model.heads = 32;
  model.kv_heads = 8;
  model.mlp_width = 14336;
  model.vocab_size = 32000;
  model.untied_classifier = true;
  model.experts = 8;
  return model;
}

TEST(ParameterCounts, MatchThePublishedSizeOfMixtral) {
  EXPECT_EQ(ModelShape(Mixtral8x7B()).counts.Total(), 46'702'792'704);
}

TEST(TrainingFlops, CountTheExpertsThatATokenMeets) {
  const ModelShape shape(Mixtral8x7B());
  // 12.9 billion parameters; the token table among them is only looked up.
  const double met = 12'879'925'248.0 - 32000.0 * 4096;
  EXPECT_DOUBLE_EQ(ForwardFlopsPerToken(shape, 64), 2 * met + 2.0 * 32 * 4096 * 64);
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(shape, 64), 3 * ForwardFlopsPerToken(shape, 64));
  double products = 0;
  for (const Gemm& gemm : WeightGemms(shape, 256, 64, 2)) products += gemm.Flops();
  const double norms = (2 * 32 + 1) * 4096;
  EXPECT_NEAR(products / (6 * 256 * (met - norms)), 1, 1e-12);
}

TEST(ModelShape, OfRanksThatShareExpertsHasAPartOfTheseAndAllElse) {
  const ModelShape whole(Mixtral8x7B()), rank = ModelShape::OfExpertRank(Mixtral8x7B(), 8);
  const int64_t expert = int64_t{32} * 3 * 4096 * 14336;
  EXPECT_EQ(rank.counts.Total(), whole.counts.Total() - 7 * expert);
  EXPECT_EQ(rank.stored_trained_experts, expert);
  // With as many tokens of others as it sends to them it has as much to do.
  EXPECT_EQ(ForwardFlopsPerToken(rank, 64), ForwardFlopsPerToken(whole, 64));
  const auto products = [](const ModelShape& shape) {
    double flops = 0;
    for (const Gemm& gemm : WeightGemms(shape, 256, 64, 2)) flops += gemm.Flops();
    return flops;
  };
  EXPECT_DOUBLE_EQ(products(rank), products(whole));
}

ModelSpec Bert(const std::string& head, int64_t classes) {
  ModelSpec model;
  model.family = "bert";
  model.head = head;
  model.layers = 12;
  model.width = 768;
  model.heads = 12;
  model.vocab_size = 30522;
  model.context = 512;
  model.classes = classes;
  return model;
}

ModelSpec Vit() {
  ModelSpec model = Bert("classification", 1000);
  model.family = "vit";
  model.vocab_size = 0;
  return model;
}

TEST(ParameterCounts, MatchThePublishedSizesOfBertAndVit) {
  EXPECT_EQ(ModelShape(Bert("masked_lm", 0)).counts.Total(), 109'514'298);
  EXPECT_EQ(ModelShape(Bert("classification", 2)).counts.Total(), 109'483'778);
  EXPECT_EQ(ModelShape(Vit()).counts.Total(), 86'567'656) << "ViT-B/16 of 1,000 classes";
}

TEST(ParameterCounts, CountATinyNetworkAsByHand) {
  ModelSpec model;
  model.layers = 2;
  model.width = 4;
  model.heads = 2;
  model.mlp_width = 10;
  model.vocab_size = 7;
  model.context = 5;
  ParameterCounts counts = ModelShape(model).counts;
  EXPECT_EQ(counts.token_embedding, 28);
  EXPECT_EQ(counts.position_embedding, 20);
  EXPECT_EQ(counts.attention, 2 * (48 + 12 + 16 + 4));
  EXPECT_EQ(counts.mlp, 2 * (40 + 10 + 40 + 4));
  EXPECT_EQ(counts.norms, 2 * 16 + 8);
  EXPECT_EQ(counts.classifier + counts.embedding_projection, 0);
  model.distinct_blocks = 1;
  model.embedding_width = 3;
  model.norm_position = "post";
  counts = ModelShape(model).counts;
  EXPECT_EQ(counts.token_embedding, 21);
  EXPECT_EQ(counts.position_embedding, 15);
  EXPECT_EQ(counts.embedding_projection, 12 + 4 + 12 + 3);
  EXPECT_EQ(counts.attention, 48 + 12 + 16 + 4);
  EXPECT_EQ(counts.norms, 16);
  model.untied_classifier = true;
  counts = ModelShape(model).counts;
  EXPECT_EQ(counts.embedding_projection, 12 + 4);
  EXPECT_EQ(counts.classifier, 28);
}

TEST(TrainingFlops, MatchesTheCountingRule) {
  const ModelShape padded = Padded();
  // 6 N + 6 L C T at T = 1024: 803 MFLOP a token.
  EXPECT_NEAR(TrainingFlopsPerToken(padded, 1024), 803.5e6, 0.5e6);
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(padded, 1024), 6.0 * 124'475'904 + 6.0 * 12 * 768 * 1024);
  EXPECT_DOUBLE_EQ(ForwardFlopsPerToken(padded, 64) * 3, TrainingFlopsPerToken(padded, 64));
}

TEST(TrainingFlops, CountSharedBlocksWithEachUseAndFrozenOnesOnce) {
  const ModelShape separate = Padded();
  ModelSpec model = separate.spec;
  model.distinct_blocks = 3;
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(ModelShape(model), 64),
                   TrainingFlopsPerToken(separate, 64));
  EXPECT_LT(ModelShape(model).counts.Total(), separate.counts.Total());
  // Half of the blocks and the embedding frozen: their forward pass remains, and the classifier's
  // share of the input gradient.
  model = separate.spec;
  model.freeze = {"transformer.w*"};
  for (int i = 0; i < 6; ++i) model.freeze.push_back("transformer.h." + std::to_string(i) + ".*");
  const double block = 12 * 768 * 768 + 13 * 768, table = 50304 * 768;
  const double attention = 768 * 64;
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(ModelShape(model), 64),
                   ForwardFlopsPerToken(separate, 64) + 2 * (2 * (6 * block + 2 * 768) + table) +
                       4 * 6 * attention);
  // A window of a quarter of the sequence: 2 (1/4) - (1/4)^2 of the square's half.
  model = separate.spec;
  model.sliding_window = 16;
  EXPECT_DOUBLE_EQ(ForwardFlopsPerToken(ModelShape(model), 64),
                   2.0 * 124'475'904 + 2 * 12 * 768 * 64 * (0.5 - 0.0625));
}

TEST(TrainingFlops, CountHeadsForTheRowsThatReachThem) {
  const double c = 768, length = 128, layers = 12;
  const double block = 12 * c * c + 13 * c, attention = layers * c * length;
  const double embeddings = (512 + 2) * c + 2 * c;
  const double table = 30522 * c;
  // The token table is a lookup below and, of the masked tokens, the classifier above.
  const double transform = c * c + 3 * c + 30522;
  ModelShape masked(Bert("masked_lm", 0));
  masked.masked_share = 0.25;
  EXPECT_DOUBLE_EQ(TrainingFlopsPerToken(masked, 128),
                   6 * (layers * block + embeddings + (table + transform) / 4) + 12 * attention);
  EXPECT_EQ(HeadRows(masked, 512, 128), 128);
  masked.masked_share = 0;
  EXPECT_EQ(HeadRows(masked, 512, 128), 4) << "one a sequence at least";

  const ModelShape classes(Bert("classification", 2));
  const double pooler = c * c + c + 2 * c + 2;
  EXPECT_DOUBLE_EQ(ForwardFlopsPerToken(classes, 128),
                   2 * (layers * block + embeddings + pooler / length) + 4 * attention);
  EXPECT_EQ(HeadRows(classes, 512, 128), 4);
}

TEST(WeightGemms, LeaveTheClassTokenOfImagesUnprojected) {
  for (const Gemm& gemm : WeightGemms(ModelShape(Vit()), 2 * 197, 197, 4)) {
    if (gemm.role == ParameterRole::kEmbeddingProjection) {
      EXPECT_EQ(gemm.pass == GemmPass::kForward ? gemm.m : gemm.k, 2 * 196);
      EXPECT_NE(gemm.pass, GemmPass::kInputGradient);
    }
    if (gemm.role == ParameterRole::kClassifier && gemm.pass == GemmPass::kForward) {
      EXPECT_EQ(gemm.m * gemm.count, 2);
      EXPECT_EQ(gemm.n, 1024);
    }
  }
}

TEST(WeightGemms, CoverEveryWeightOnceInEachPass) {
  for (int64_t tokens : {1, 31, 64, 1024, 5000}) {
    const int64_t weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50304 * 768;
    std::map<GemmPass, double> flops;
    for (const Gemm& gemm : WeightGemms(kGpt2, tokens, tokens, 2)) flops[gemm.pass] += gemm.Flops();
    ASSERT_EQ(flops.size(), 3u);
    for (auto [pass, total] : flops) {
      EXPECT_DOUBLE_EQ(total, 2.0 * static_cast<double>(weights) * static_cast<double>(tokens));
    }
  }
}

TEST(WeightGemms, AreComputedAsOftenAsTheirSubLayer) {
  const ComputedShares computed{.attention = 0.25, .mlp = 0.5};
  std::map<double, std::set<ParameterRole>> roles;
  for (const Gemm& gemm : WeightGemms(ModelShape(Mixtral8x7B()), 256, 64, 2)) {
    roles[ComputedShare(computed, gemm.role)].insert(gemm.role);
  }
  using enum ParameterRole;
  EXPECT_EQ(roles[0.25], (std::set{kQueriesKeysValues, kAttentionOutput}));
  EXPECT_EQ(roles[0.5], (std::set{kRouter, kMlpUp, kMlpDown}));
  EXPECT_EQ(roles[1], (std::set{kClassifier}));
}

TEST(WeightGemms, ChunksTheClassifierAndNothingElse) {
  // 128 MiB of bf16 logits are 1334 rows of 50304; 2048 rows make two even chunks of 1024.
  EXPECT_EQ(LogitsChunkRows(50304, 2048, 2), 1024);
  EXPECT_EQ(LogitsChunkRows(50304, 100, 2), 128);
  EXPECT_EQ(LogitsChunkRows(1 << 24, 1024, 4), 32);
  for (const Gemm& gemm : WeightGemms(kGpt2, 2048, 256, 2)) {
    const int64_t rows = gemm.pass == GemmPass::kWeightGradient ? gemm.k : gemm.m;
    const bool classifies = gemm.role == ParameterRole::kClassifier;
    EXPECT_EQ(rows, classifies ? 1024 : 2048);
    EXPECT_EQ(gemm.count, classifies ? 2 : 12);
  }
}

TEST(ShapeOf, ResolvesWhatTheJobLeavesOpen) {
  JobSpec job;
  job.data.tokenizer.vocab_size = 1000;
  EXPECT_EQ(ShapeOf(job).spec.vocab_size, 1024);
  job.data.tokenizer.path = "tokenizer.json";
  EXPECT_EQ(ShapeOf(job).spec.vocab_size, 50304);
  job.model.vocab_size = 50257;
  EXPECT_EQ(ShapeOf(job).spec.vocab_size, 50257);
  EXPECT_EQ(ShapeOf(job).PaddedClasses(), 50304);
  job.model.family = "bert";
  job.model.vocab_size = 0;
  EXPECT_EQ(ShapeOf(job).spec.vocab_size, 30528) << "BERT's, in whole tiles";
  job.model.head = "classification";
  job.data.masking.probability = 0.4;
  EXPECT_EQ(ShapeOf(job).PaddedClasses(), 64);
  EXPECT_EQ(ShapeOf(job).masked_share, 0.4);
}

}  // namespace
}  // namespace weft
