// Adapters of AdaLoRA in files of peft, which leave out ranks.
#include "common/formats/peft_adalora.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kBase[] = WEFT_SOURCE_DIR "/tests/parity/testdata/llama/start";
/// Trained by peft, which has left no rank of one of its layers.
constexpr char kTrained[] = WEFT_SOURCE_DIR "/tests/parity/testdata/llama/adalora/trained";

using Values = std::map<std::string, std::vector<float>>;

WeightBuffer Into(Values& values) {
  return [&values](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
    std::vector<float>& own = values[tensor.parameter];
    size_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    own.assign(count, -1);
    return std::span(own);
  };
}

WeightValues From(const Values& values) {
  return [&values](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
    return std::span<const float>(values.at(tensor.parameter));
  };
}

ModelSpec Base() {
  auto model = ReadModelConfig(Env::Posix(), kBase, ModelSpec());
  WEFT_CHECK(model.ok(), model.status().message());
  return *model;
}

TEST(PeftAdaLora, RanksAreReadToTheirPlacesAndLeftOutAgain) {
  ModelSpec model = Base();
  auto peft = ReadAdapterConfig(Env::Posix(), kTrained, model);
  ASSERT_TRUE(peft.ok()) << peft.status().message();
  model.peft = *peft;
  EXPECT_EQ(peft->method, "adalora");
  EXPECT_EQ(peft->adalora.init_r, 6);
  EXPECT_EQ(peft->adalora.target_r, 3);
  EXPECT_EQ(peft->adalora.tinit, 2);
  EXPECT_EQ(peft->adalora.tfinal, 4);
  EXPECT_EQ(peft->adalora.beta1, 0.7);
  EXPECT_EQ(peft->adalora.beta2, 0.8);
  EXPECT_EQ(peft->adalora.orth_reg_weight, 0.1);
  Values values;
  const Status read = ImportAdapter(Env::Posix(), kTrained, model, Into(values));
  ASSERT_TRUE(read.ok()) << read.message();
  // rank_pattern has [false, true, false, true, false, false] for this layer.
  const std::string layer = "model.layers.0.self_attn.q_proj.";
  const std::vector<float>& diagonal = values.at(layer + "lora_E");
  ASSERT_EQ(diagonal.size(), 6u);
  for (size_t k = 0; k < 6; ++k) EXPECT_EQ(diagonal[k] != 0, k == 1 || k == 3) << k;
  const auto file =
      SafetensorsFile::Open(Env::Posix(), std::string(kTrained) + "/adapter_model.safetensors");
  ASSERT_TRUE(file.ok());
  const SafetensorsView& b = *file->Find("base_model.model." + layer + "lora_B");
  EXPECT_THAT(b.shape, ElementsAre(32, 2));
  const auto* const of_file = reinterpret_cast<const float*>(b.bytes.data());
  const std::vector<float>& own = values.at(layer + "lora_B");
  for (size_t row = 0; row < 32; ++row) {
    EXPECT_EQ(own[row * 6 + 1], of_file[row * 2]);
    EXPECT_EQ(own[row * 6 + 3], of_file[row * 2 + 1]);
    EXPECT_EQ(own[row * 6 + 2], 0);
  }
  const std::vector<float>& none = values.at("model.layers.1.self_attn.q_proj.lora_A");
  EXPECT_THAT(none, ::testing::Each(0.0f));

  FaultEnv env;
  ASSERT_TRUE(ExportAdapter(env, "/adapter", model, {.steps = 20}, From(values)).ok());
  const auto written = SafetensorsFile::Open(env, "/adapter/adapter_model.safetensors");
  ASSERT_TRUE(written.ok()) << written.status().message();
  ASSERT_EQ(written->tensors().size(), file->tensors().size());
  for (const SafetensorsView& tensor : file->tensors()) {
    const SafetensorsView* const same = written->Find(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    EXPECT_EQ(same->shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(same->bytes, tensor.bytes)) << tensor.name;
  }
  const auto pattern = [](Env& where, const std::string& folder) {
    auto text = ReadFile(where, folder + "/adapter_config.json");
    WEFT_CHECK(text.ok(), folder);
    return ParseJson(*text)->at("rank_pattern");
  };
  EXPECT_EQ(pattern(env, "/adapter"), pattern(Env::Posix(), kTrained));
}

TEST(PeftAdaLora, PatternsThatDoNotFitAreRefused) {
  ModelSpec model = Base();
  auto peft = ReadAdapterConfig(Env::Posix(), kTrained, model);
  ASSERT_TRUE(peft.ok());
  model.peft = *peft;
  const auto refusal = [&](const char* pattern) {
    const Json config = {{"rank_pattern", *ParseJson(pattern)}};
    return std::string(KeptRanksFrom(config, model).status().message());
  };
  EXPECT_EQ(refusal("null"), "");
  EXPECT_THAT(refusal("[]"), "");
  EXPECT_THAT(refusal("[1]"), HasSubstr("which is no object"));
  EXPECT_THAT(refusal(R"({"model.layers.9.self_attn.q_proj.lora_E": [true]})"),
              HasSubstr("no layer with an adapter"));
  EXPECT_THAT(refusal(R"({"model.layers.0.self_attn.q_proj.lora_E": [true, false]})"),
              HasSubstr("no list of 6 times true or false"));
  EXPECT_THAT(refusal(R"({"model.layers.0.self_attn.q_proj.lora_E": [1, 1, 1, 1, 1, 1]})"),
              HasSubstr("no list of 6 times true or false"));
  // With the name of the adapter, as some versions write it.
  EXPECT_EQ(refusal(R"({"model.layers.0.self_attn.q_proj.lora_E.default":
                        [true, false, true, true, true, true]})"),
            "");
  // Of two lists for a layer none is right.
  EXPECT_THAT(refusal(R"({"model.layers.0.self_attn.q_proj.lora_E":
                          [true, false, true, true, true, true],
                          "model.layers.0.self_attn.q_proj.lora_E.default":
                          [true, false, true, true, true, true]})"),
              HasSubstr("a layer that it has another list of"));
}

TEST(PeftAdaLora, SettingsOutOfRangeAreRefusedByName) {
  const auto refusal = [](const char* key, const Json& value) {
    PeftSpec spec;
    return std::string(ReadAdaLora(Json{{key, value}}, spec).message());
  };
  EXPECT_EQ(refusal("init_r", 12), "");
  EXPECT_THAT(refusal("init_r", 0), HasSubstr("has init_r 0"));
  EXPECT_THAT(refusal("target_r", "many"), HasSubstr("has target_r \"many\""));
  EXPECT_THAT(refusal("tinit", -1), HasSubstr("has tinit -1"));
  EXPECT_THAT(refusal("deltaT", 0), HasSubstr("has deltaT 0"));
  EXPECT_THAT(refusal("beta1", 1), HasSubstr("has beta1 1"));
  EXPECT_THAT(refusal("orth_reg_weight", -0.5), HasSubstr("has orth_reg_weight -0.5"));
}

}  // namespace
}  // namespace weft
