// Adapters besides the weights of experts: what is counted, on meshes, and what is refused. Their
// training is compared with that of peft in tests/parity, and next to quantised experts in
// quantized_experts_test.cc.
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "worker/engine/models/model.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/testing/expert_run.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

ModelSpec AdaptedMixture(const std::vector<std::string>& targets = {"q_proj", "w1", "w2", "w3"}) {
  ModelSpec model = MixtralModel();
  model.peft.method = "lora";
  model.peft.rank = 4;
  model.peft.alpha = 8;
  model.peft.target_modules = targets;
  return model;
}

// Each of two expert-parallel ranks has the adapters of its experts, and those of the attention.
TEST(ExpertAdapters, AreThoseThatAreCounted) {
  const ModelSpec model = AdaptedMixture();
  const std::vector<ParameterInfo> counted = ParametersOf(model);
  const TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
  const ParameterSet& parameters = run.model->parameters();
  ASSERT_EQ(parameters.size(), std::ssize(counted));
  int64_t trained = 0, of_experts = 0, adapters_of_experts = 0;
  for (const ParameterInfo& info : counted) {
    const Parameter& parameter = parameters[*parameters.Find(info.name)];
    EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
    EXPECT_EQ(parameter.adapter_of, info.adapter_of);
    EXPECT_EQ(info.frozen, info.adapter_of.empty()) << info.name;
    if (info.frozen) continue;
    trained += info.Elements();
    if (info.expert < 0) continue;
    of_experts += info.Elements();
    ++adapters_of_experts;
  }
  EXPECT_EQ(adapters_of_experts, model.layers * model.experts * 3 * 2);
  EXPECT_EQ(of_experts, model.layers * model.experts * 3 * 4 * (model.width + model.mlp_width));
  const ModelShape whole(model), half = ModelShape::OfExpertRank(model, 2);
  EXPECT_EQ(whole.trained, trained);
  EXPECT_EQ(whole.stored_trained_experts, of_experts);
  EXPECT_EQ(half.trained, trained - of_experts / 2);
}

TEST(ExpertAdapters, StartAsTheNetworkBitForBit) {
  const ModelSpec model = AdaptedMixture();
  RandomTokens tokens{model.vocab_size, model.context};
  const auto batch = tokens.Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
  TinyRun plain(WithoutPeft(model), ModelOptionsOf(TinyPlan("fp32")));
  EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch));
}

TEST(ExpertAdapters, MeshesFollowOneRank) {
  const auto case_of = [](const ExpertRunConfig& config) {
    ModelSpec model = AdaptedMixture();
    model.kv_heads = 2;
    MeshCase c = CaseOf(config, model);
    c.job.train.steps = 4;
    return c;
  };
  const MeshOutcome whole = TrainOnMesh(case_of({})).front();
  for (const ExpertRunConfig& config : std::vector<ExpertRunConfig>{
           {.ranks = 4, .expert = 2, .policy = "recompute", .zero_stage = 2},
           {.ranks = 2, .expert = 2, .cut = {1, 1}, .schedule = "zero_bubble"},
           {.ranks = 2, .expert = 2, .zero_stage = 3, .tensor = 2}}) {
    SCOPED_TRACE(NameOf(config));
    ExpectFollows(TrainOnMesh(case_of(config)), whole, 2e-5, 5e-4);
  }
}

TEST(ExpertAdapters, NameWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const ModelSpec& model) {
    return std::string(NewModel(context, model, {}).status().message());
  };
  EXPECT_EQ(refusal(AdaptedMixture()), "");
  EXPECT_THAT(refusal(AdaptedMixture({"*.experts.1.w1"})),
              HasSubstr("model.peft adapts model.layers.0.block_sparse_moe.experts.1.w1 otherwise "
                        "than model.layers.0.block_sparse_moe.experts.0.w1, "));
  ModelSpec model = AdaptedMixture();
  model.peft.rank_pattern = {{R"(experts\.2\.w2)", 2}};
  EXPECT_THAT(refusal(model), HasSubstr("experts.2.w2 otherwise than "));
  model = AdaptedMixture({"all-linear"});
  model.peft.modules_to_save = {"*.experts.0.*"};
  EXPECT_THAT(refusal(model), HasSubstr("all experts of a layer in model.peft.modules_to_save"));
  EXPECT_THAT(refusal(AdaptedMixture({"gate"})), HasSubstr("'gate' names no linear layer; hint: "));
  model = AdaptedMixture();
  model.peft.use_dora = true;
  EXPECT_THAT(
      refusal(model),
      HasSubstr("model.peft.target_modules with experts does not go with model.peft.use_dora"));
  model.peft.target_modules = {"q_proj"};
  EXPECT_EQ(refusal(model), "");
}

}  // namespace
}  // namespace weft::engine
