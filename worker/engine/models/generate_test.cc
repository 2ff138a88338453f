#include "worker/engine/models/generate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

// Logits far enough apart that rounding does not swap them.
void Sharpen(TinyRun& run) {
  const TensorView wte = run.model->parameters().value(0);
  ASSERT_TRUE(kernels::Scale(run.context.stream, {wte, 40.0f}).ok());
  ASSERT_TRUE(run.model->Pack(run.context).ok());
}

std::vector<int32_t> Continue(TinyRun& run, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options) {
  auto tokens =
      Generate(run.context, dynamic_cast<const LanguageModel&>(*run.model), prompt, options);
  EXPECT_TRUE(tokens.ok()) << tokens.status().ToString();
  return tokens.ok() ? *tokens : std::vector<int32_t>();
}

ModelSpec TinyLlama() {
  ModelSpec spec = TinyModel();
  spec.family = "llama";
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.sliding_window = 4;
  spec.qkv_bias = true;
  return spec;
}

// With the most probable token at each step.
void ExpectTokensOfWholePasses(const ModelSpec& spec, const PrecisionRecipe& precision) {
  SCOPED_TRACE(spec.family + " in " + std::string(precision.name));
  TinyRun run(spec, {&precision, false, {}});
  Sharpen(run);
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 10;
  const std::vector<int32_t> generated = Continue(run, prompt, options);
  ASSERT_EQ(generated.size(), 10u);

  std::vector<int32_t> tokens = prompt;
  for (int32_t expected : generated) {
    std::vector<int32_t> stream = tokens;
    stream.push_back(0);
    const auto logits = run.Logits(BatchOf(stream, static_cast<int64_t>(tokens.size())));
    const auto row = logits.end() - spec.vocab_size;
    const auto best = static_cast<int32_t>(std::max_element(row, logits.end()) - row);
    EXPECT_EQ(best, expected) << "at " << tokens.size();
    tokens.push_back(expected);
  }
}

TEST(GenerateTest, CachedDecodingGivesTheTokensOfWholeForwardPasses) {
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    // A tensor has one scale, so what becomes of a token depends on the tokens around it.
    if (precision->block_products != nullptr) continue;
    ExpectTokensOfWholePasses(TinyModel(), *precision);
    ExpectTokensOfWholePasses(TinyLlama(), *precision);
  }
}

TEST(GenerateTest, AddsTheLogitsOfAnotherNetwork) {
  ModelSpec of_model = TinyModel(), of_base = TinyLlama();
  of_model.untied_classifier = of_base.untied_classifier = true;
  of_base.context = 12;
  TinyRun model(of_model, {&kFp32Precision, false, {}});
  TinyRun base(of_base, {&kFp32Precision, false, {}});
  GenerateOptions options;
  options.sampling.temperature = 0;
  std::vector<int32_t> tokens = {3, 1, 4};
  const std::vector<int32_t> alone = Continue(model, tokens, options);
  options.base = dynamic_cast<const LanguageModel*>(base.model.get());
  const std::vector<int32_t> both = Continue(model, tokens, options);
  EXPECT_EQ(both.size(), 10u) << "the shorter context is that of the base";
  EXPECT_NE(both, std::vector<int32_t>(alone.begin(), alone.begin() + 10));
  for (const int32_t expected : both) {
    std::vector<int32_t> stream = tokens;
    stream.push_back(0);
    const Batch batch = BatchOf(stream, static_cast<int64_t>(tokens.size()));
    std::vector<float> sum = model.Logits(batch);
    const std::vector<float> added = base.Logits(batch);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
    const auto row = sum.end() - of_base.vocab_size;
    EXPECT_EQ(std::max_element(row, sum.end()) - row, expected) << "at " << tokens.size();
    tokens.push_back(expected);
  }

  ModelSpec of_another = TinyModel();
  of_another.vocab_size = 51;
  TinyRun another(of_another, {&kFp32Precision, false, {}});
  options.base = dynamic_cast<const LanguageModel*>(another.model.get());
  const auto refused =
      Generate(model.context, dynamic_cast<const LanguageModel&>(*model.model), {1}, options);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalid);
}

TEST(GenerateTest, StopsAtTheContextAtAStopTokenAndWhenTold) {
  TinyRun run(TinyModel(), {&kFp32Precision, false, {}});
  GenerateOptions options;
  options.max_new_tokens = 100;
  options.sampling.seed = 5;
  const std::vector<int32_t> all = Continue(run, {1, 2, 3}, options);
  EXPECT_EQ(all.size(), 14u) << "16 positions: 3 of the prompt, 13 read back, 1 more drawn";
  EXPECT_EQ(Continue(run, {1, 2, 3}, options), all);
  options.stop_token = all[4];
  const std::vector<int32_t> stopped = Continue(run, {1, 2, 3}, options);
  EXPECT_EQ(stopped.back(), all[4]);
  EXPECT_LE(stopped.size(), 5u);
  options.stop_token = -1;
  options.on_token = [](int32_t) { return false; };
  EXPECT_EQ(Continue(run, {1, 2, 3}, options).size(), 1u);
}

TEST(GenerateTest, TokensAreDrawnWithTheirProbability) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.1f), std::log(0.3f),
                                     std::log(0.1f)};
  const auto shares = [&](const SamplingOptions& options) {
    std::vector<double> counts(4, 0.0);
    for (uint64_t i = 0; i < 20000; ++i) counts[SampleToken(logits, options, i)] += 1.0 / 20000;
    return counts;
  };
  const auto expect = [](const std::vector<double>& got, const std::vector<double>& want) {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.015) << i;
  };
  expect(shares({}), {0.5, 0.1, 0.3, 0.1});
  expect(shares({.top_k = 2}), {0.625, 0, 0.375, 0});
  expect(shares({.top_p = 0.75}), {0.625, 0, 0.375, 0});
  expect(shares({.top_p = 0.85}), {0.5 / 0.9, 0.1 / 0.9, 0.3 / 0.9, 0});
  expect(shares({.top_p = 0.01}), {1, 0, 0, 0});
  expect(shares({.temperature = 0}), {1, 0, 0, 0});
  // Squared and normalised: 0.25, 0.01, 0.09, 0.01 of 0.36.
  expect(shares({.temperature = 0.5}), {0.694, 0.028, 0.25, 0.028});
}

TEST(GenerateTest, BadRequestsAreRefused) {
  TinyRun run(TinyModel(), {&kFp32Precision, false, {}});
  const auto code = [&](const std::vector<int32_t>& prompt, const GenerateOptions& options) {
    return Generate(run.context, dynamic_cast<const LanguageModel&>(*run.model), prompt, options)
        .status()
        .code();
  };
  EXPECT_EQ(code({}, {}), StatusCode::kInvalid);
  EXPECT_EQ(code(std::vector<int32_t>(17, 1), {}), StatusCode::kInvalid);
  EXPECT_EQ(code({50}, {}), StatusCode::kInvalid);
  EXPECT_EQ(code({-1}, {}), StatusCode::kInvalid);
  for (const SamplingOptions& sampling :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = NAN},
        SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1.1}}) {
    GenerateOptions options;
    options.sampling = sampling;
    EXPECT_EQ(code({1}, options), StatusCode::kInvalid);
  }
}

}  // namespace
}  // namespace weft::engine
