// Configurations of adapters of experts, which peft converts for transformers 5.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/peft_adapter.h"
#include "common/json.h"

namespace weft {
namespace {

ModelSpec Mixtral() {
  auto spec = ReadModelConfig(Env::Posix(), WEFT_SOURCE_DIR "/tests/parity/testdata/mixtral/start",
                              ModelSpec());
  WEFT_CHECK(spec.ok(), spec.status().message());
  return *spec;
}

/// A mixture with adapters of rank 4 and alpha 8, scaled by the root of the rank.
ModelSpec MixtureOfRslora(const std::vector<std::string>& targets) {
  ModelSpec model = Mixtral();
  model.peft.method = "lora";
  model.peft.rank = 4;
  model.peft.alpha = 8;
  model.peft.use_rslora = true;
  model.peft.target_modules = targets;
  return model;
}

Status ExportZeros(FaultEnv& env, const ModelSpec& model) {
  const std::vector<float> zeros(1 << 16, 0.0f);
  return ExportAdapter(env, "/adapter", model, {},
                       [&](const HuggingFaceTensor&) -> Result<std::span<const float>> {
                         return std::span<const float>(zeros);
                       });
}

Json ExportedConfig(const ModelSpec& model) {
  FaultEnv env;
  const Status written = ExportZeros(env, model);
  WEFT_CHECK(written.ok(), written.message());
  return *ParseJson(*ReadFile(env, "/adapter/adapter_config.json"));
}

TEST(PeftExperts, TheRootOfTheRankOfExpertsIsWrittenInAlpha) {
  const Json experts = ExportedConfig(MixtureOfRslora({"w1", "w2", "w3"}));
  const Json attention = ExportedConfig(MixtureOfRslora({"q_proj"}));
  EXPECT_EQ(experts["lora_alpha"], 16);
  EXPECT_EQ(experts["use_rslora"], false);
  EXPECT_EQ(attention["lora_alpha"], 8);
  EXPECT_EQ(attention["use_rslora"], true);
}

TEST(PeftExperts, TheRootOfTheRankOfExpertsIsWrittenInAlphasOfPatterns) {
  ModelSpec model = MixtureOfRslora({"q_proj", "w1", "w2", "w3"});
  model.peft.rank_pattern = {{"q_proj", 9}};
  const Json ranks = ExportedConfig(model);
  EXPECT_EQ(ranks["use_rslora"], false);
  EXPECT_EQ(ranks["lora_alpha"], 16);
  EXPECT_EQ(ranks["rank_pattern"], Json::object({{"q_proj", 9}}));
  EXPECT_EQ(ranks["alpha_pattern"], Json::object({{"q_proj", 24}}));  // 8 / sqrt(9) = 24 / 9
  model.peft.rank_pattern = {};
  model.peft.alpha_pattern = {{"q_proj", 3}};
  const Json alphas = ExportedConfig(model);
  EXPECT_EQ(alphas["use_rslora"], false);
  EXPECT_EQ(alphas["lora_alpha"], 16);
  EXPECT_EQ(alphas["alpha_pattern"], Json::object({{"q_proj", 6}}));  // 3 / sqrt(4) = 6 / 4
  // Two maps may describe the same layer by two patterns.
  model.peft.rank_pattern = {{"self_attn.*", 9}};
  const Json both = ExportedConfig(model);
  EXPECT_EQ(both["use_rslora"], true);
  EXPECT_EQ(both["lora_alpha"], 8);
  EXPECT_EQ(both["alpha_pattern"], Json::object({{"q_proj", 3}}));
}

// 1e6 * sqrt(4) is more than an alpha may be.
TEST(PeftExperts, AnAlphaThatWouldNotBeReadIsNotWritten) {
  ModelSpec model = MixtureOfRslora({"w1", "w2", "w3"});
  model.peft.alpha = 1e6;
  FaultEnv env;
  ASSERT_TRUE(ExportZeros(env, model).ok());
  const auto again = ReadAdapterConfig(env, "/adapter", Mixtral());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->alpha, 1e6);
  EXPECT_TRUE(again->use_rslora);
}

// With transformers 5 peft compares an expression with names of experts without their number.
TEST(PeftExperts, AnExpressionThatDescribesExpertsIsWrittenAsWholeNames) {
  ModelSpec model = MixtureOfRslora({});
  model.peft.target_regex = R"(.*(q_proj|experts\.\d+\.w[123]))";
  const Json targets = ExportedConfig(model)["target_modules"];
  ASSERT_TRUE(targets.is_array());
  EXPECT_EQ(static_cast<int64_t>(targets.size()), model.layers * (1 + 3 * model.experts));
  EXPECT_EQ(targets[0], "model.layers.0.block_sparse_moe.experts.0.w1");
  model.peft.target_regex = ".*q_proj";
  EXPECT_EQ(ExportedConfig(model)["target_modules"], ".*q_proj");
}

}  // namespace
}  // namespace weft
