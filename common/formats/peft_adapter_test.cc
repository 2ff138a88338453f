#include "common/formats/peft_adapter.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/safetensors.h"
#include "common/json.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kConfig[] = "/adapter/adapter_config.json";
constexpr char kWeights[] = "/adapter/adapter_model.safetensors";

/// What tests/parity/make_adapter_fixtures.py wrote with peft.
std::string Fixture(const std::string& family) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + family;
}

/// `adapter`: a case of that script, for example gpt2/lora.
ModelSpec BaseOf(const std::string& adapter) {
  const std::string family = adapter.substr(0, adapter.find('/'));
  auto spec = ReadModelConfig(Env::Posix(), Fixture(family) + "/start", ModelSpec());
  WEFT_CHECK(spec.ok(), spec.status().message());
  return *spec;
}

std::string FileOf(const std::string& adapter, const std::string& name) {
  auto text = ReadFile(Env::Posix(), Fixture(adapter) + "/start/" + name);
  WEFT_CHECK(text.ok(), text.status().message());
  return *text;
}

ModelSpec AdaptedModel(const std::string& adapter) {
  ModelSpec model = BaseOf(adapter);
  auto peft = ReadAdapterConfig(Env::Posix(), Fixture(adapter) + "/start", model);
  WEFT_CHECK(peft.ok(), peft.status().message());
  model.peft = *peft;
  return model;
}

using Values = std::map<std::string, std::vector<float>>;

/// A buffer that keeps all tensors in `values`.
WeightBuffer Into(Values& values) {
  return [&values](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
    std::vector<float>& own = values[tensor.parameter];
    size_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    own.resize(count);
    return std::span(own);
  };
}

TEST(PeftAdapter, ConfigurationsOfPeftAreRead) {
  const PeftSpec gpt2 = AdaptedModel("gpt2/lora").peft;
  EXPECT_EQ(gpt2.method, "lora");
  EXPECT_EQ(gpt2.rank, 4);
  EXPECT_EQ(gpt2.alpha, 8);
  EXPECT_FALSE(gpt2.use_rslora);
  EXPECT_THAT(gpt2.target_modules, ::testing::UnorderedElementsAre("c_attn", "c_proj"));
  const PeftSpec llama = AdaptedModel("llama/lora").peft;
  EXPECT_TRUE(llama.use_rslora);
  EXPECT_THAT(llama.target_modules,
              ::testing::UnorderedElementsAre("q_proj", "v_proj", "down_proj"));
  const PeftSpec bert = AdaptedModel("bert_mlm/lora").peft;
  EXPECT_THAT(bert.layers_to_transform, ElementsAre(1));
  EXPECT_EQ(AdaptedModel("vit/lora").peft.target_regex,
            R"(.*\.layer\.\d+\.(intermediate|output)\.dense)");
  const PeftSpec patterns = AdaptedModel("llama/patterns").peft;
  EXPECT_EQ(patterns.rank_pattern.at("up_proj"), 3);
  EXPECT_EQ(patterns.alpha_pattern.at("v_proj"), 8);
  EXPECT_THAT(patterns.modules_to_save, ElementsAre("lm_head"));
  EXPECT_THAT(AdaptedModel("gpt2/bias").peft.modules_to_save, ElementsAre("*.bias"));
  const PeftSpec dora = AdaptedModel("gpt2/dora").peft;
  EXPECT_TRUE(dora.use_dora);
  EXPECT_THAT(dora.modules_to_save, ElementsAre("ln_f"));
  EXPECT_EQ(AdaptedModel("llama/pissa").peft.init, "pissa");
  const PeftSpec ia3 = AdaptedModel("llama/ia3").peft;
  EXPECT_EQ(ia3.method, "ia3");
  EXPECT_THAT(ia3.feedforward_modules, ElementsAre("down_proj"));
  EXPECT_EQ(AdaptedModel("llama/miss").peft.method, "miss");
}

TEST(PeftAdapter, WhatIsWrittenIsWhatPeftWrote) {
  for (const std::string adapter :
       {"gpt2/lora", "gpt2/dora", "gpt2/ia3", "gpt2/bias", "llama/lora", "llama/patterns",
        "llama/dora", "llama/pissa", "llama/olora", "llama/ia3", "llama/miss", "bert_mlm/lora",
        "bert_mlm/ia3", "vit/lora", "vit/miss"}) {
    SCOPED_TRACE(adapter);
    const ModelSpec model = AdaptedModel(adapter);
    Values values;
    ASSERT_TRUE(ImportAdapter(Env::Posix(), Fixture(adapter) + "/start", model, Into(values)).ok());
    FaultEnv env;
    const Status written =
        ExportAdapter(env, "/adapter", model, "base",
                      [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
                        return std::span<const float>(values.at(tensor.parameter));
                      });
    ASSERT_TRUE(written.ok()) << written.message();
    auto own = SafetensorsFile::Open(env, kWeights);
    auto of_peft =
        SafetensorsFile::Open(Env::Posix(), Fixture(adapter) + "/start/adapter_model.safetensors");
    ASSERT_TRUE(own.ok() && of_peft.ok());
    ASSERT_EQ(own->tensors().size(), of_peft->tensors().size());
    for (const SafetensorsView& tensor : of_peft->tensors()) {
      const SafetensorsView* const same = own->Find(tensor.name);
      ASSERT_NE(same, nullptr) << tensor.name;
      EXPECT_EQ(same->shape, tensor.shape);
      EXPECT_TRUE(std::ranges::equal(same->bytes, tensor.bytes)) << tensor.name;
    }
    // And it is read as the same adapter.
    ModelSpec again = BaseOf(adapter);
    auto peft = ReadAdapterConfig(env, "/adapter", again);
    ASSERT_TRUE(peft.ok()) << peft.status().message();
    again.peft = *peft;
    EXPECT_EQ(peft->rank, model.peft.rank);
    EXPECT_EQ(peft->alpha, model.peft.alpha);
    EXPECT_EQ(peft->use_rslora, model.peft.use_rslora);
    Values read;
    ASSERT_TRUE(ImportAdapter(env, "/adapter", again, Into(read)).ok());
    EXPECT_EQ(read, values);
    auto text = ReadFile(env, kConfig);
    const Json config = *ParseJson(*text);
    if (model.peft.method != "miss") {
      EXPECT_EQ(config["fan_in_fan_out"], adapter.starts_with("gpt2"));
    }
    EXPECT_EQ(config["base_model_name_or_path"], "base");
  }
}

/// gpt2's adapter, changed.
struct Folder {
  FaultEnv env;
  ModelSpec base = BaseOf("gpt2");
  Json config = *ParseJson(FileOf("gpt2/lora", "adapter_config.json"));
  std::string weights = FileOf("gpt2/lora", "adapter_model.safetensors");

  /// What reading it says.
  std::string Refusal() {
    WEFT_CHECK(env.CreateDirs("/adapter").ok(), "folder");
    WEFT_CHECK(WriteFileAtomic(env, kConfig, config.dump()).ok(), "config");
    WEFT_CHECK(WriteFileAtomic(env, kWeights, weights).ok(), "weights");
    auto peft = ReadAdapterConfig(env, "/adapter", base);
    if (!peft.ok()) return std::string(peft.status().message());
    ModelSpec model = base;
    model.peft = *peft;
    Values values;
    return std::string(ImportAdapter(env, "/adapter", model, Into(values)).message());
  }
  /// Writes the weights again, after `change`.
  template <class Fn>
  void Change(Fn&& change) {
    auto file = SafetensorsFile::Parse(std::as_bytes(std::span(weights)), "test");
    WEFT_CHECK(file.ok(), file.status().message());
    std::vector<SafetensorsTensor> tensors;
    for (const SafetensorsView& view : file->tensors()) {
      tensors.push_back({view.name, view.type, view.shape, view.bytes, {}});
    }
    change(tensors);
    FaultEnv scratch;
    WEFT_CHECK(WriteSafetensors(scratch, "/file", tensors).ok(), "write");
    weights = *ReadFile(scratch, "/file");
  }
};

TEST(PeftAdapter, SettingsThatAreNotComputedAreRefusedByName) {
  EXPECT_EQ(Folder().Refusal(), "");
  const std::map<std::string, Json> settings = {{"bias", "lora_only"},
                                                {"init_lora_weights", "loftq"},
                                                {"lora_bias", true},
                                                {"trainable_token_indices", {1}},
                                                {"a_later_setting", 3}};
  for (const auto& [key, value] : settings) {
    Folder folder;
    folder.config[key] = value;
    EXPECT_THAT(folder.Refusal(), HasSubstr(key + " " + value.dump() + ", which is not computed"));
  }
  Folder other;
  other.config["peft_type"] = "HRA";
  EXPECT_THAT(other.Refusal(), HasSubstr("peft_type \"HRA\"; LORA, IA3 and MISS are imported"));
  // What the file must have then.
  Folder patterns;
  patterns.config["rank_pattern"] = {{"c_attn", 2}};
  EXPECT_THAT(patterns.Refusal(), HasSubstr("is F32 [4, 32], but the model needs F32 [2, 32]"));
  Folder dora;
  dora.config["use_dora"] = true;
  EXPECT_THAT(dora.Refusal(), HasSubstr("c_attn.lora_magnitude_vector', which model.peft asks"));
  Folder biased;
  biased.config["bias"] = "all";
  EXPECT_THAT(biased.Refusal(), HasSubstr("bias', which model.peft asks for"));
  for (const Json& rank : {Json(0), Json("4"), Json(4.5), Json(1 << 20), Json()}) {
    Folder folder;
    folder.config["r"] = rank;
    EXPECT_THAT(folder.Refusal(), HasSubstr("has r " + rank.dump()));
  }
  Folder larger;
  larger.config["r"] = 5;
  EXPECT_THAT(larger.Refusal(), HasSubstr("is F32 [4, 32], but the model needs F32 [5, 32]"));
}

TEST(PeftAdapter, TensorsThatDoNotFitAreRefusedByName) {
  const std::string first = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight";
  using Tensors = std::vector<SafetensorsTensor>;
  Folder missing;
  missing.Change([&](Tensors& all) {
    std::erase_if(all, [&](const SafetensorsTensor& each) { return each.name == first; });
  });
  EXPECT_THAT(missing.Refusal(), HasSubstr("has no tensor '" + first + "'"));
  Folder unknown;
  unknown.Change([&](Tensors& all) { all.front().name = "base_model.model.lm_head.weight"; });
  EXPECT_THAT(unknown.Refusal(),
              HasSubstr("'base_model.model.lm_head.weight', which is neither of an adapter"));
  Folder turned;
  turned.Change([&](Tensors& all) {
    for (SafetensorsTensor& each : all) {
      if (each.name == first) std::swap(each.shape[0], each.shape[1]);
    }
  });
  EXPECT_THAT(turned.Refusal(), HasSubstr(first + "' is F32 [32, 4]"));
  Folder integers;
  integers.Change([&](Tensors& all) {
    for (SafetensorsTensor& each : all) each.type = SafetensorsType::kI32;
  });
  EXPECT_THAT(integers.Refusal(), HasSubstr("has type I32; F32, BF16 and F16"));
  Folder broken;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(broken.weights.data() + broken.weights.size() - sizeof(nan), &nan, sizeof(nan));
  EXPECT_THAT(broken.Refusal(), HasSubstr("holds NaN or infinite numbers"));
}

TEST(PeftAdapter, CutAndChangedFilesAreRefused) {
  const std::string whole = FileOf("gpt2/lora", "adapter_model.safetensors");
  for (size_t size = 0; size < whole.size(); size += 1 + size / 8) {
    Folder folder;
    folder.weights.resize(size);
    EXPECT_NE(folder.Refusal(), "") << size;
  }
  for (const char* text : {"", "[]", "{", "3", "{\"r\": 4}", "{\"peft_type\": 3}"}) {
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs("/adapter").ok());
    ASSERT_TRUE(WriteFileAtomic(env, kConfig, text).ok());
    ASSERT_TRUE(WriteFileAtomic(env, kWeights, whole).ok());
    EXPECT_FALSE(ReadAdapterConfig(env, "/adapter", BaseOf("gpt2")).ok()) << text;
  }
}

TEST(PeftAdapter, NamesThatPeftWouldTakeForMoreAreWrittenWhole) {
  ModelSpec model = BaseOf("bert_mlm");
  model.peft.method = "lora";
  model.peft.target_modules = {"dense"};  // of the head, too
  FaultEnv env;
  std::vector<float> zeros(1 << 16, 0.0f);
  ASSERT_TRUE(ExportAdapter(env, "/adapter", model, "",
                            [&](const HuggingFaceTensor&) -> Result<std::span<const float>> {
                              return std::span<const float>(zeros);
                            })
                  .ok());
  auto text = ReadFile(env, kConfig);
  const Json config = *ParseJson(*text);
  EXPECT_EQ(config["target_modules"].size(), 6u);
  EXPECT_EQ(config["target_modules"][0], "bert.encoder.layer.0.attention.output.dense");
  EXPECT_TRUE(config["base_model_name_or_path"].is_null());
}

}  // namespace
}  // namespace weft
