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
#include "common/model/technique_cost.h"

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

/// All cases of the script except virtual tokens, whose networks folders do not have.
std::vector<std::string> Adapters() {
  std::vector<std::string> adapters;
  for (const std::string family :
       {"bert_classes", "bert_mlm", "gpt2", "llama", "mistral", "mixtral", "qwen2", "vit"}) {
    auto names = Env::Posix().ListDir(Fixture(family));
    WEFT_CHECK(names.ok(), names.status().message());
    for (const std::string& name : *names) {
      const std::string adapter = family + "/" + name;
      if (!Env::Posix().FileExists(Fixture(adapter) + "/start/adapter_config.json")) continue;
      const Json config = *ParseJson(FileOf(adapter, "adapter_config.json"));
      if (!config.contains("num_virtual_tokens")) adapters.push_back(adapter);
    }
  }
  return adapters;
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

/// Writes the adapter of a model, all of whose numbers are zero.
Status ExportZeros(FaultEnv& env, const ModelSpec& model) {
  const std::vector<float> zeros(1 << 16, 0.0f);
  return ExportAdapter(env, "/adapter", model, {},
                       [&](const HuggingFaceTensor&) -> Result<std::span<const float>> {
                         return std::span<const float>(zeros);
                       });
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
  EXPECT_THAT(AdaptedModel("mixtral/experts").peft.target_modules,
              ::testing::UnorderedElementsAre("w1", "w2", "w3"));
  EXPECT_EQ(AdaptedModel("llama/miss").peft.method, "miss");
  const PeftSpec loha = AdaptedModel("llama/loha").peft;
  EXPECT_EQ(loha.method, "loha");
  EXPECT_EQ(loha.rank, 3);
  EXPECT_EQ(loha.alpha, 6);
  EXPECT_EQ(loha.rank_pattern.at("down_proj"), 2);
  EXPECT_EQ(loha.alpha_pattern.at("v_proj"), 3);
  const PeftSpec lokr = AdaptedModel("llama/lokr").peft;
  EXPECT_EQ(lokr.method, "lokr");
  EXPECT_TRUE(lokr.decompose_both);
  EXPECT_EQ(lokr.decompose_factor, -1);
  EXPECT_EQ(AdaptedModel("bert_mlm/lokr").peft.decompose_factor, 4);
  const PeftSpec oft = AdaptedModel("llama/oft").peft;
  EXPECT_EQ(oft.method, "oft");
  EXPECT_EQ(oft.oft_block_size, 8);
  const PeftSpec vera = AdaptedModel("gpt2/vera").peft;
  EXPECT_EQ(vera.method, "vera");
  EXPECT_EQ(vera.rank, 4);
  EXPECT_EQ(vera.d_initial, 0.1);
  EXPECT_THAT(vera.modules_to_save, ElementsAre("*.bias"));
}

TEST(PeftAdapter, WhatIsWrittenIsWhatPeftWrote) {
  for (const std::string& adapter : Adapters()) {
    SCOPED_TRACE(adapter);
    const ModelSpec model = AdaptedModel(adapter);
    Values values;
    ASSERT_TRUE(ImportAdapter(Env::Posix(), Fixture(adapter) + "/start", model, Into(values)).ok());
    FaultEnv env;
    const Status written =
        ExportAdapter(env, "/adapter", model, {.base = "base", .steps = 20},
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
    // The scale of experts by rsLoRA is written as that of others (PeftExperts).
    const bool rescaled = model.peft.use_rslora && HasExpertAdapters(model);
    EXPECT_EQ(peft->use_rslora, model.peft.use_rslora && !rescaled);
    EXPECT_TRUE(rescaled || peft->alpha == model.peft.alpha) << peft->alpha;
    Values read;
    ASSERT_TRUE(ImportAdapter(env, "/adapter", again, Into(read)).ok());
    EXPECT_EQ(read, values);
    auto text = ReadFile(env, kConfig);
    const Json config = *ParseJson(*text);
    EXPECT_EQ(config["base_model_name_or_path"], "base");
    // All that it says of itself peft says, too, with the same values, except names of targets.
    Json of_library = *ParseJson(FileOf(adapter, "adapter_config.json"));
    // It also names the heads of other families there.
    if (adapter == "bert_classes/lora") of_library["modules_to_save"] = Json::array({"classifier"});
    for (const auto& [key, value] : config.items()) {
      ASSERT_TRUE(of_library.contains(key)) << key;
      const bool named = key == "target_modules" || key == "feedforward_modules" ||
                         key == "layers_to_transform" || key == "base_model_name_or_path" ||
                         key == "task_type" || key == "peft_version";
      const bool of_scale = key == "use_rslora" || key == "lora_alpha" || key == "alpha_pattern";
      if (named || (rescaled && of_scale)) continue;
      EXPECT_EQ(value, of_library[key]) << key;
    }
  }
}

/// An adapter, changed.
struct Folder {
  FaultEnv env;
  ModelSpec base;
  Json config;
  std::string weights;

  explicit Folder(const std::string& adapter = "gpt2/lora")
      : base(BaseOf(adapter)),
        config(*ParseJson(FileOf(adapter, "adapter_config.json"))),
        weights(FileOf(adapter, "adapter_model.safetensors")) {}

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

// Old versions of peft did not scale: alphas are read such that the scale is one.
TEST(PeftAdapter, ALokrOfAnOldVersionIsNotScaled) {
  ModelSpec model = BaseOf("llama");
  const auto old = ReadAdapterConfig(Env::Posix(), Fixture("peft_0_8/llama_lokr"), model);
  ASSERT_TRUE(old.ok()) << old.status().message();
  EXPECT_EQ(old->rank, 1);
  EXPECT_EQ(old->alpha, 1);  // The file has 2.
  model.peft = *old;
  FaultEnv env;
  const Status written = ExportZeros(env, model);
  ASSERT_TRUE(written.ok()) << written.message();
  const Json config = *ParseJson(*ReadFile(env, kConfig));
  EXPECT_EQ(config["alpha"], 1);
  EXPECT_EQ(config["rank_dropout_scale"], false);
  const auto again = ReadAdapterConfig(env, "/adapter", BaseOf("llama"));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->alpha, 1);

  Folder patterns("llama/lokr");
  patterns.config["rank_pattern"] = {{"k_proj", 1}};
  patterns.config["alpha_pattern"] = {{"q_proj", 8}};
  EXPECT_EQ(patterns.Refusal(), "");
  const auto scaled = ReadAdapterConfig(patterns.env, "/adapter", patterns.base);
  ASSERT_TRUE(scaled.ok()) << scaled.status().message();
  EXPECT_EQ(scaled->alpha, 2);
  EXPECT_EQ(scaled->alpha_pattern, (std::map<std::string, double>{{"q_proj", 8}}));
  patterns.config.erase("rank_dropout_scale");
  EXPECT_EQ(patterns.Refusal(), "");
  const auto unscaled = ReadAdapterConfig(patterns.env, "/adapter", patterns.base);
  ASSERT_TRUE(unscaled.ok()) << unscaled.status().message();
  EXPECT_EQ(unscaled->alpha, 1);
  EXPECT_EQ(unscaled->alpha_pattern, (std::map<std::string, double>{{"k_proj", 1}}));
}

TEST(PeftAdapter, SettingsThatAreNotComputedAreRefusedByName) {
  EXPECT_EQ(Folder().Refusal(), "");
  const std::map<std::string, Json> settings = {{"bias", "some"},
                                                {"init_lora_weights", "loftq"},
                                                {"lora_bias", true},
                                                {"a_later_setting", 3}};
  for (const auto& [key, value] : settings) {
    Folder folder;
    folder.config[key] = value;
    EXPECT_THAT(folder.Refusal(), HasSubstr(key + " " + value.dump() + ", which is not computed"));
  }
  Folder other;
  other.config["peft_type"] = "HRA";
  EXPECT_THAT(other.Refusal(),
              HasSubstr("peft_type \"HRA\"; LORA, ADALORA, LOHA, LOKR, OFT, VERA, "
                        "IA3, MISS, TRAINABLE_TOKENS, LN_TUNING, PROMPT_TUNING, P_TUNING and "
                        "PREFIX_TUNING are imported"));
  Folder fused;
  fused.config["target_parameters"] = {"gate_up_proj", "down_proj"};
  EXPECT_THAT(
      fused.Refusal(),
      HasSubstr("target_parameters [\"gate_up_proj\",\"down_proj\"], tensors of all experts"));
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

TEST(PeftAdapter, TrainedTokensAreThoseOfTheEmbedding) {
  const std::vector<int64_t> tokens = {40, 3, 4, 5, 66, 12};
  EXPECT_EQ(AdaptedModel("gpt2/tokens").peft.trainable_token_indices, tokens);
  const PeftSpec alone = AdaptedModel("llama/tokens_alone").peft;
  EXPECT_EQ(alone.method, "selective");
  EXPECT_EQ(alone.trainable_token_indices, tokens);
  Folder named("llama/tokens");
  named.config["trainable_token_indices"] = {{"embed_tokens", tokens}};
  EXPECT_EQ(named.Refusal(), "");
  named.config["trainable_token_indices"] = {{"lm_head", tokens}};
  EXPECT_THAT(named.Refusal(), HasSubstr("is not the token embedding 'model.embed_tokens'"));
  named.config["trainable_token_indices"] = {1, 67};
  EXPECT_THAT(named.Refusal(), HasSubstr("and the model has tokens 0 to 66"));
  named.config["trainable_token_indices"] = {1, 6};
  EXPECT_THAT(named.Refusal(), HasSubstr("is F32 [6, 32], but the model needs F32 [2, 32]"));
  Folder of_head("gpt2/tokens_alone");
  of_head.config["target_modules"] = "lm_head";
  EXPECT_THAT(of_head.Refusal(), HasSubstr("is not the token embedding 'transformer.wte'"));
  Folder random("gpt2/tokens_alone");
  random.config["init_weights"] = false;
  EXPECT_THAT(random.Refusal(), HasSubstr("has init_weights false, which is not computed"));
}

TEST(PeftAdapter, TrainedNormsAreThoseOfTheNetwork) {
  const PeftSpec gpt2 = AdaptedModel("gpt2/ln_tuning").peft;
  EXPECT_EQ(gpt2.method, "selective");
  EXPECT_THAT(gpt2.modules_to_save, ElementsAre("ln_1", "ln_2", "ln_f"));
  // A regular expression of peft: the names of the norms in the file.
  Folder regex("gpt2/ln_tuning");
  regex.config["target_modules"] = ".*ln_.*";
  EXPECT_EQ(regex.Refusal(), "");
  const auto by_layer = ReadAdapterConfig(regex.env, "/adapter", regex.base);
  ASSERT_TRUE(by_layer.ok());
  EXPECT_THAT(by_layer->modules_to_save,
              ElementsAre("transformer.h.0.ln_1", "transformer.h.0.ln_2", "transformer.h.1.ln_1",
                          "transformer.h.1.ln_2", "transformer.ln_f"));
  using Tensors = std::vector<SafetensorsTensor>;
  Folder missing("gpt2/ln_tuning");
  missing.Change([](Tensors& all) { all.erase(all.begin()); });
  EXPECT_THAT(missing.Refusal(), HasSubstr("has no tensor 'base_model.model.transformer.h.0.ln_1."
                                           "ln_tuning_layers."));
  Folder linear("gpt2/ln_tuning");
  linear.Change([](Tensors& all) {
    all.front().name = "base_model.model.transformer.h.0.attn.c_attn.ln_tuning_layers.weight";
  });
  EXPECT_THAT(linear.Refusal(), HasSubstr("of its token embedding or of a norm, nor of the model"));
  // peft writes a norm that is saved as another tensor.
  for (const char* saved : {"ln_f", "transformer"}) {
    Folder twice("gpt2/ln_tuning");
    twice.config["target_modules"] = {"ln_1", "ln_2"};
    twice.config["modules_to_save"] = Json::array({saved});
    EXPECT_THAT(twice.Refusal(),
                HasSubstr("[\"" + std::string(saved) +
                          "\"] with a norm, which is not computed with LN_TUNING"));
  }
}

TEST(PeftAdapter, NormsThatAreNotTrainedWholeHaveNoFolder) {
  const auto refusal = [](const std::string& family, const std::vector<std::string>& modules) {
    ModelSpec model = BaseOf(family);
    model.peft.method = "selective";
    model.peft.modules_to_save = modules;
    FaultEnv env;
    return std::string(ExportZeros(env, model).message());
  };
  EXPECT_EQ(refusal("gpt2", {"ln_f"}), "");
  EXPECT_EQ(refusal("bert_classes", {"LayerNorm", "classifier"}), "");
  for (const char* module : {"*.bias", "*.ln_f.weight", "c_attn"}) {
    EXPECT_THAT(refusal("gpt2", {module}), HasSubstr("the model has no adapter to write; hint: "));
  }
  // A module of peft with a norm in it.
  EXPECT_THAT(refusal("bert_mlm", {"predictions"}), HasSubstr("has no adapter to write"));
  EXPECT_THAT(refusal("gpt2", {"ln_f", "wte"}), HasSubstr("peft unties 'transformer.wte.weight'"));
}

// For peft they are the modules whose names end with these characters.
TEST(PeftAdapter, SavedModulesAreThoseOfPeft) {
  const std::string fixture = "peft_0_8/llama_lora";
  ModelSpec model = BaseOf("llama");
  const auto peft = ReadAdapterConfig(Env::Posix(), Fixture(fixture), model);
  ASSERT_TRUE(peft.ok()) << peft.status().message();
  EXPECT_THAT(
      peft->modules_to_save,
      ElementsAre("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
                  "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm",
                  "model.norm"));
  // And the last norm alone has its whole name.
  model.peft = *peft;
  model.peft.modules_to_save = {"norm"};
  FaultEnv env;
  ASSERT_TRUE(ExportZeros(env, model).ok());
  const Json config = *ParseJson(*ReadFile(env, kConfig));
  EXPECT_EQ(config["modules_to_save"], Json::array({"model.norm"}));
}

TEST(PeftAdapter, SavedModulesAreReadOnceEach) {
  Folder empty("gpt2/dora");
  empty.config["modules_to_save"] = {"ln_f", ""};
  EXPECT_THAT(empty.Refusal(), HasSubstr("modules_to_save \"\", which is no name of a module"));
  Folder repeated("gpt2/dora");
  repeated.config["modules_to_save"] = {"ln_f", "ln_f", "ln_f"};
  EXPECT_EQ(repeated.Refusal(), "");
  const auto peft = ReadAdapterConfig(repeated.env, "/adapter", repeated.base);
  ASSERT_TRUE(peft.ok()) << peft.status().message();
  EXPECT_THAT(peft->modules_to_save, ElementsAre("ln_f"));
  // Each of these names means the norms to peft.
  Folder overlapping("llama/lora");
  overlapping.config["modules_to_save"] = {"norm", "orm", "model.norm", "norm"};
  overlapping.Refusal();
  const auto norms = ReadAdapterConfig(overlapping.env, "/adapter", overlapping.base);
  ASSERT_TRUE(norms.ok()) << norms.status().message();
  EXPECT_THAT(
      norms->modules_to_save,
      ElementsAre("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
                  "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm",
                  "model.norm"));
}

TEST(PeftAdapter, HeadsThatPeftAddsOfItsOwnAccordNeedNotBeThere) {
  EXPECT_THAT(AdaptedModel("bert_classes/lora").peft.modules_to_save, ElementsAre("classifier"));
  Folder other("gpt2/dora");
  other.config["modules_to_save"] = {"ln_f", "classifier", "score"};
  EXPECT_EQ(other.Refusal(), "");
}

TEST(PeftAdapter, ATableWithItsFactorsIsReadInPlaceOfThatOfTheNetwork) {
  Folder folder("llama/embedding");
  const std::vector<float> table(67 * 32, 0.5f);
  folder.Change([&](std::vector<SafetensorsTensor>& tensors) {
    tensors.push_back({"base_model.model.model.embed_tokens.base_layer.weight",
                       SafetensorsType::kF32,
                       {67, 32},
                       std::as_bytes(std::span(table)),
                       {}});
  });
  ASSERT_EQ(folder.Refusal(), "");
  ModelSpec model = folder.base;
  model.peft = *ReadAdapterConfig(folder.env, "/adapter", model);
  Values values;
  ASSERT_TRUE(ImportAdapter(folder.env, "/adapter", model, Into(values)).ok());
  EXPECT_EQ(values.at("model.embed_tokens.weight"), table);
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

TEST(PeftAdapter, SettingsOfMergedWeightsThatAreNotComputedAreRefusedByName) {
  const struct {
    const char* adapter;
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"llama/loha", "rank_dropout", 0.1, "rank_dropout 0.1, which is not computed"},
      {"llama/loha", "use_effective_conv2d", true, "which is not computed"},
      {"llama/loha", "alpha", "8", "has alpha \"8\", which is no number"},
      {"llama/lokr", "module_dropout", 0.5, "module_dropout 0.5, which is not computed"},
      {"llama/lokr", "rank_dropout_scale", true, "which is not computed"},
      {"llama/lokr", "decompose_both", 1, "which is neither true nor false"},
      {"llama/lokr", "decompose_factor", -2, "which is no whole number from -1 to 131072"},
      {"llama/lokr", "decompose_factor", 2, "model.peft asks for"},
      {"llama/lokr", "decompose_both", false, "model.peft asks for"},
      {"llama/oft", "r", 4, "has r 4, which is not computed"},
      {"llama/oft", "coft", true, "coft true, which is not computed"},
      {"llama/oft", "block_share", true, "block_share true, which is not computed"},
      {"llama/oft", "use_cayley_neumann", false, "use_cayley_neumann false, which is not"},
      {"llama/oft", "num_cayley_neumann_terms", 6, "num_cayley_neumann_terms 6, which is not"},
      {"llama/oft", "oft_block_size", 1, "which is no whole number from 2 to 4096"},
      {"llama/oft", "oft_block_size", 16, "is F32 [4, 28], but the model needs F32 [2, 120]"},
      {"llama/vera", "vera_dropout", 0.1, "vera_dropout 0.1, which is not computed"},
      {"llama/vera", "save_projection", false, "hint: save it with save_projection true"},
      {"llama/vera", "d_initial", "0", "which is no number from -10 to 10"},
      {"llama/vera", "r", 6, "is F32 [5], but the model needs F32 [6]"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(std::string(each.adapter) + " " + each.key + " " + each.value.dump());
    EXPECT_EQ(Folder(each.adapter).Refusal(), "");
    Folder folder(each.adapter);
    folder.config[each.key] = each.value;
    EXPECT_THAT(folder.Refusal(), HasSubstr(each.message));
  }
  // What peft took before it had the series.
  Folder before("llama/oft");
  before.config.erase("use_cayley_neumann");
  EXPECT_THAT(before.Refusal(), HasSubstr("use_cayley_neumann false, which is not computed"));
}

TEST(PeftAdapter, SharedFactorsMustBeThere) {
  using Tensors = std::vector<SafetensorsTensor>;
  Folder missing("llama/vera");
  missing.Change([](Tensors& all) {
    std::erase_if(all, [](const SafetensorsTensor& each) { return each.name.ends_with("vera_A"); });
  });
  EXPECT_THAT(missing.Refusal(), HasSubstr("has no tensor 'base_model.vera_A'"));
  // The tensor belongs to another method, and LoRA has none.
  Folder other("llama/lora");
  other.Change([](Tensors& all) {
    SafetensorsTensor more = all.front();
    more.name = "base_model.vera_A";
    all.push_back(more);
  });
  EXPECT_THAT(other.Refusal(), HasSubstr("'base_model.vera_A', which model.peft does not have"));
}

TEST(PeftAdapter, PeftHasNoSuchAdaptersOfAGpt2) {
  for (const char* method : {"loha", "lokr", "oft", "miss"}) {
    ModelSpec model = BaseOf("gpt2");
    model.peft.method = method;
    FaultEnv env;
    const Status written = ExportAdapter(
        env, "/adapter", model, {}, [](const HuggingFaceTensor&) -> Result<std::span<const float>> {
          return InternalError("is not asked for");
        });
    EXPECT_THAT(written.message(), HasSubstr("for the layers of a gpt2 (Conv1D); hint: "));
  }
}

TEST(PeftAdapter, CutAndChangedFilesAreRefused) {
  for (const char* adapter : {"gpt2/lora", "llama/loha", "llama/lokr", "llama/oft", "llama/vera"}) {
    const size_t whole = Folder(adapter).weights.size();
    for (size_t size = 0; size < whole; size += 1 + size / 8) {
      Folder folder(adapter);
      folder.weights.resize(size);
      EXPECT_NE(folder.Refusal(), "") << adapter << " " << size;
    }
  }
  const std::string whole = FileOf("gpt2/lora", "adapter_model.safetensors");
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
  model.peft.method = "loha";
  model.peft.target_modules = {"dense"};  // in peft that of the head, too
  FaultEnv env;
  std::vector<float> zeros(1 << 16, 0.0f);
  ASSERT_TRUE(ExportAdapter(env, "/adapter", model, {},
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
