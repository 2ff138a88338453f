#include "worker/engine/train/group_norms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "common/model/parameter_list.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

TEST(GroupNorms, ParametersOfEveryFamilyFindTheirGroup) {
  const std::map<std::string, std::string> expected = {
      {"transformer.wte.weight", "embedding"},
      {"transformer.wpe.weight", "embedding"},
      {"transformer.h.0.ln_1.bias", "norms"},
      {"transformer.h.0.attn.c_attn.weight", "attention"},
      {"transformer.h.0.mlp.c_proj.bias", "mlp"},
      {"transformer.ln_f.weight", "norms"},
      {"lm_head.weight", "head"},
      {"model.embed_tokens.weight", "embedding"},
      {"model.layers.1.self_attn.q_proj.weight", "attention"},
      {"model.layers.1.post_attention_layernorm.weight", "norms"},
      {"model.layers.1.mlp.gate_proj.weight", "mlp"},
      {"model.norm.weight", "norms"},
      {"bert.embeddings.word_embeddings.weight", "embedding"},
      {"bert.embeddings.LayerNorm.weight", "norms"},
      {"bert.encoder.layer.0.attention.output.dense.weight", "attention"},
      {"bert.encoder.layer.0.attention.output.LayerNorm.bias", "norms"},
      {"bert.encoder.layer.0.intermediate.dense.weight", "mlp"},
      {"bert.encoder.layer.0.output.dense.weight", "mlp"},
      {"cls.predictions.transform.dense.weight", "head"},
      {"vit.embeddings.cls_token", "embedding"},
      {"vit.encoder.layer.1.layernorm_before.weight", "norms"},
      {"classifier.weight", "head"}};
  size_t found = 0;
  for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
    ModelSpec spec = TinyModel();
    spec.family = family;
    spec.untied_classifier = spec.family == "gpt2";
    spec.classes = 3;
    for (const ParameterInfo& parameter : ParametersOf(spec)) {
      const auto at = expected.find(parameter.name);
      if (at == expected.end()) continue;
      EXPECT_EQ(GroupOf(parameter.role), at->second) << parameter.name;
      ++found;
    }
  }
  EXPECT_EQ(found, expected.size());
}

TEST(GroupNorms, AreThoseOfTheirParametersAndMakeUpTheWhole) {
  TinyRun run(TinyModel(), ModelOptionsOf(TinyPlan("fp32")));
  run.Differentiate(*RandomTokens(50, 16).Get(0, 0, 2));
  const ParameterSet& parameters = run.model->parameters();
  std::map<std::string, std::pair<double, double>> expected;  // sums of squares
  double all = 0;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    auto& [gradients, values] = expected[std::string(GroupOf(parameters[i].role))];
    const TensorView value = parameters.value(i);
    const TensorView gradient = parameters.gradient(i);
    for (int64_t k = 0; k < value.shape.Elements(); ++k) {
      gradients += std::pow(double{gradient.As<float>()[k]}, 2);
      values += std::pow(double{value.As<float>()[k]}, 2);
      all += std::pow(double{gradient.As<float>()[k]}, 2);
    }
  }
  GroupSums sums[kParameterGroups];
  ASSERT_TRUE(MeasureGroups(run.context, parameters, sums).ok());
  const std::vector<GroupNorm> norms = GroupNorms(parameters, sums, 0.5);
  ASSERT_EQ(norms.size(), expected.size());
  double total = 0;
  for (const GroupNorm& norm : norms) {
    EXPECT_GT(norm.gradient, 0) << norm.group;
    EXPECT_NEAR(norm.gradient * 0.5, std::sqrt(expected[norm.group].first), 1e-9) << norm.group;
    EXPECT_NEAR(norm.parameter, std::sqrt(expected[norm.group].second), 1e-9) << norm.group;
    total += norm.gradient * norm.gradient / 4;
  }
  EXPECT_NEAR(total, all, 1e-9 * all);
}

}  // namespace
}  // namespace weft::engine
