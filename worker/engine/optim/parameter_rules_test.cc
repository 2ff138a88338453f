#include "worker/engine/optim/parameter_rules.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What GPT-2 with 12 blocks registers, two tensors of a block for all.
ParameterList& Gpt2Names(ParameterList& parameters) {
  parameters.Register("transformer.wte.weight", {10, 4}, ParameterRole::kTokenEmbedding);
  parameters.Register("transformer.wpe.weight", {8, 4}, ParameterRole::kPositionEmbedding);
  for (int block : {0, 1, 11}) {
    parameters.StartUnit(block);
    const std::string prefix = "transformer.h." + std::to_string(block);
    const auto role = ParameterRole::kQueriesKeysValues;
    parameters.Register(prefix + ".attn.c_attn.weight", {12, 4}, role);
    parameters.Register(prefix + ".attn.c_attn.bias", {12}, role, {.bias = true});
  }
  parameters.StartUnit();
  parameters.Register("transformer.ln_f.weight", {4}, ParameterRole::kNorm);
  return parameters;
}

TEST(ParameterRulesTest, LayersAreCountedFromTheEmbeddingsToTheHead) {
  ParameterList gpt2;
  EXPECT_THAT(LayersOf(Gpt2Names(gpt2)), ElementsAre(0, 0, 1, 1, 2, 2, 12, 12, 13));
  // A stage of a pipeline without the first blocks.
  ParameterList stage;
  stage.SetNetwork({}, 12);
  stage.StartUnit(7);
  stage.Register("model.layers.7.mlp.up_proj.weight", {8, 4}, ParameterRole::kMlpUp);
  stage.StartUnit();
  stage.Register("model.norm.weight", {4}, ParameterRole::kNorm);
  stage.Register("lm_head.weight", {10, 4}, ParameterRole::kClassifier);
  EXPECT_THAT(LayersOf(stage), ElementsAre(8, 13, 13));
}

TEST(ParameterRulesTest, OnlyMatricesDecayUnlessAGroupSaysOtherwise) {
  ParameterList parameters;
  OptimizerSpec spec;
  spec.weight_decay = 0.5;
  spec.groups = {
      {.parameters = {"*.h.1.*.bias"}, .learning_rate_scale = 2, .weight_decay = 0.25},
      {.parameters = {"*.h.1.*", "*ln_f*"}, .learning_rate_scale = 3, .weight_decay = {}}};
  auto rules = ResolveParameterRules(spec, Gpt2Names(parameters));
  ASSERT_TRUE(rules.ok()) << rules.status().ToString();
  std::vector<double> decays, scales;
  for (const ParameterRule& rule : *rules) {
    decays.push_back(rule.weight_decay);
    scales.push_back(rule.learning_rate_scale);
  }
  EXPECT_THAT(decays, ElementsAre(0.5, 0.5, 0.5, 0, 0.5, 0.25, 0.5, 0, 0));
  EXPECT_THAT(scales, ElementsAre(1, 1, 1, 1, 3, 2, 1, 1, 3)) << "the first group that matches";
}

TEST(ParameterRulesTest, AParametersOwnFactorScalesItsRateAndNotItsDecoupledDecay) {
  for (const char* name : {"adamw", "lion", "adam"}) {
    ParameterList parameters;
    Gpt2Names(parameters).SetStart(2, {}, 0.25);
    OptimizerSpec spec;
    spec.name = name;
    spec.weight_decay = 0.5;
    spec.groups = {{.parameters = {"*.h.0.*"}, .learning_rate_scale = 2, .weight_decay = {}}};
    auto rules = ResolveParameterRules(spec, parameters);
    ASSERT_TRUE(rules.ok());
    EXPECT_EQ((*rules)[2].learning_rate_scale, 0.5);
    EXPECT_EQ((*rules)[2].weight_decay, spec.name == "adam" ? 0.5 : 2.0);
    EXPECT_EQ((*rules)[4].learning_rate_scale, 1);
  }
}

TEST(ParameterRulesTest, LayerDecayCountsDownFromTheHeadAndGroupsMultiply) {
  ParameterList parameters;
  OptimizerSpec spec;
  spec.layer_decay = 0.5;
  spec.groups = {{.parameters = {"*wte*"}, .learning_rate_scale = 8, .weight_decay = {}}};
  auto rules = ResolveParameterRules(spec, Gpt2Names(parameters));
  ASSERT_TRUE(rules.ok());
  EXPECT_EQ((*rules)[8].learning_rate_scale, 1);
  EXPECT_EQ((*rules)[7].learning_rate_scale, 0.5);
  EXPECT_EQ((*rules)[2].learning_rate_scale, std::pow(0.5, 12));
  EXPECT_EQ((*rules)[1].learning_rate_scale, std::pow(0.5, 13));
  EXPECT_EQ((*rules)[0].learning_rate_scale, 8 * std::pow(0.5, 13));
}

TEST(ParameterRulesTest, APatternThatNamesNothingIsAnErrorWithNamesThatExist) {
  ParameterList parameters;
  Gpt2Names(parameters);
  OptimizerSpec spec;
  spec.groups = {
      {.parameters = {"transformer.wt.weight"}, .learning_rate_scale = 2, .weight_decay = {}}};
  auto rules = ResolveParameterRules(spec, parameters);
  EXPECT_EQ(rules.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(rules.status().message(), HasSubstr("did you mean 'transformer.wte.weight'"));
  spec.groups[0].parameters = {"model.layers.*"};
  EXPECT_THAT(ResolveParameterRules(spec, parameters).status().message(),
              HasSubstr("names are like 'transformer.wte.weight'"));
}

}  // namespace
}  // namespace weft::engine
