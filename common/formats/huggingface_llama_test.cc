#include <functional>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/huggingface.h"
#include "common/formats/safetensors_index.h"
#include "common/model/model_sizes.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

const std::string kParity = std::string(WEFT_SOURCE_DIR) + "/tests/parity/testdata/";

ModelSpec Read(const std::string& name, const ModelSpec& base = {}) {
  Result<ModelSpec> model = ReadModelConfig(Env::Posix(), kParity + name + "/start", base);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? *model : ModelSpec();
}

Json Config(const std::string& name) {
  Result<std::string> text = ReadFile(Env::Posix(), kParity + name + "/start/config.json");
  EXPECT_TRUE(text.ok());
  return *ParseJson(*text);
}

ModelSpec Tiny() {
  ModelSpec model;
  model.family = "llama";
  model.layers = 4;
  model.width = 32;
  model.heads = 4;
  model.kv_heads = 2;
  model.mlp_width = 72;
  model.vocab_size = 67;
  model.context = 24;
  return model;
}

TEST(LlamaConfig, SaysWhatTransformersWrote) {
  ModelSpec base;
  base.dropout = 0.25;
  base.freeze = {"*.weight"};
  ModelSpec model = Read("llama", base);
  EXPECT_EQ(model.family, "llama");
  EXPECT_EQ(model.layers, 2);
  EXPECT_EQ(model.width, 32);
  EXPECT_EQ(model.heads, 4);
  EXPECT_EQ(model.kv_heads, 2);
  EXPECT_EQ(model.mlp_width, 72);
  EXPECT_EQ(model.vocab_size, 67);
  EXPECT_EQ(model.context, 24);
  EXPECT_EQ(model.norm_epsilon, 1e-5);
  EXPECT_EQ(model.rope_theta, 10000);
  EXPECT_TRUE(model.untied_classifier);
  EXPECT_EQ(model.sliding_window, 0);
  EXPECT_FALSE(model.qkv_bias);
  EXPECT_EQ(model.dropout, 0.25);
  EXPECT_EQ(model.freeze, base.freeze);

  EXPECT_EQ(model.experts, 0);

  model = Read("mixtral");
  EXPECT_EQ(model.family, "llama");
  EXPECT_EQ(model.experts, 4);
  EXPECT_EQ(model.experts_per_token, 2);
  EXPECT_EQ(model.sliding_window, 0);

  model = Read("llama3");
  EXPECT_FALSE(model.untied_classifier);
  EXPECT_EQ(model.rope_theta, 100);
  EXPECT_EQ(model.rope_scaling.kind, "llama3");
  EXPECT_EQ(model.rope_scaling.factor, 4);
  EXPECT_EQ(model.rope_scaling.original_context, 16);
  EXPECT_EQ(Read("mistral").sliding_window, 7);
  EXPECT_TRUE(Read("qwen2").qkv_bias);
  EXPECT_EQ(Read("qwen2").sliding_window, 0);
}

TEST(LlamaConfig, ReadsTheKeysOfTransformers4) {
  Json config = Config("llama");
  config.erase("rope_parameters");
  config["rope_theta"] = 500000.0;
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  config["num_key_value_heads"] = nullptr;
  config["head_dim"] = nullptr;
  Result<ModelSpec> model = ModelFromConfig(config, {});
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->rope_theta, 500000);
  EXPECT_EQ(model->rope_scaling.kind, "linear");
  EXPECT_EQ(model->rope_scaling.factor, 2);
  EXPECT_EQ(KvHeads(*model), 4);
  config = Config("mistral");
  config.erase("sliding_window");
  EXPECT_EQ(ModelFromConfig(config, {})->sliding_window, 0) << "4096, more than the context";
  config["max_position_embeddings"] = 8192;
  EXPECT_EQ(ModelFromConfig(config, {})->sliding_window, 4096);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(ModelFromConfig(config, {})->sliding_window, 0);
  config = Config("qwen2");
  config.erase("layer_types");
  config["sliding_window"] = 8;
  EXPECT_EQ(ModelFromConfig(config, {})->sliding_window, 0);
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 0;
  EXPECT_EQ(ModelFromConfig(config, {})->sliding_window, 8);
}

TEST(LlamaConfig, RefusesWhatTheEngineDoesNotCompute) {
  struct Case {
    const char* name;
    const char* key;
    Json value;
    const char* reason;
  };
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const std::vector<Case> cases = {
      {"llama", "hidden_act", "gelu", "only \"silu\""},
      {"llama", "attention_bias", true, "attention_bias"},
      {"llama", "mlp_bias", true, "mlp_bias"},
      {"llama", "head_dim", 12, "head_dim"},
      {"llama", "rope_parameters", yarn, "\"yarn\""},
      {"llama", "rope_scaling", yarn, "\"yarn\""},
      {"llama", "rope_scaling", "linear", "must be an object"},
      {"llama", "rope_parameters", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {"llama", "rope_scaling", {{"rope_type", "linear"}, {"factor", "two"}}, "factor"},
      {"llama", "rope_scaling", {{"rope_type", "linear"}, {"factor", 0.1}}, "factor"},
      {"llama", "num_key_value_heads", 3, "key heads"},
      {"llama", "num_attention_heads", 0, "num_attention_heads 0"},
      {"llama", "hidden_size", -32, "width is -32"},
      {"llama", "intermediate_size", nullptr, "intermediate_size"},
      {"llama", "rms_norm_eps", "small", "rms_norm_eps"},
      {"llama", "quantization_config", Json::object(), "quantised"},
      {"mistral", "num_key_value_heads", "all", "num_key_value_heads"},
      {"mistral", "sliding_window", -3, "sliding_window"},
      {"mistral", "sliding_window", "all", "sliding_window"},
      {"qwen2", "layer_types", {"full_attention", "sliding_attention"}, "layer_types"},
      {"qwen2", "layer_types", {"linear_attention", "linear_attention"}, "linear_attention"},
      {"qwen2", "layer_types", 3, "layer_types"},
  };
  for (const Case& c : cases) {
    Json config = Config(c.name);
    config[c.key] = c.value;
    Result<ModelSpec> model = ModelFromConfig(config, {});
    ASSERT_FALSE(model.ok()) << c.key;
    EXPECT_EQ(model.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(model.status().message(), HasSubstr(c.reason));
  }
  ModelSpec base;
  base.norm_position = "post";
  EXPECT_THAT(ModelFromConfig(Config("llama"), base).status().message(),
              HasSubstr("model.norm_position"));
}

TEST(LlamaConfig, ReadsBackWhatItWrites) {
  const std::vector<std::function<void(ModelSpec&)>> changes = {
      [](ModelSpec&) {},
      [](ModelSpec& m) { m.untied_classifier = true; },
      [](ModelSpec& m) { m.sliding_window = 5; },
      [](ModelSpec& m) { m.head_width = 16; },
      [](ModelSpec& m) { m.qkv_bias = true; },
      [](ModelSpec& m) {
        m.qkv_bias = true;
        m.sliding_window = 5;
      },
      [](ModelSpec& m) {
        m.rope_theta = 5e5;
        m.rope_scaling = {"llama3", 8, 1, 4, 16};
      },
      [](ModelSpec& m) {
        m.rope_scaling = {"linear", 2, 1, 4, 8192};
      },
  };
  for (const auto& change : changes) {
    ModelSpec model = Tiny();
    model.attention_dropout = 0;  // which files say
    change(model);
    Result<Json> config = ModelToConfig(model);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    Result<ModelSpec> again = ModelFromConfig(*config, {});
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(ToJson(*again), ToJson(model)) << config->dump(2);
  }
}

TEST(LlamaConfig, IsNotWrittenForModelsThatTransformersLacks) {
  for (const std::string family : {"llama", "gpt2"}) {
    ModelSpec model = Tiny();
    model.family = family;
    model.kv_heads = 0;
    model.norm_position = "none";
    EXPECT_THAT(ModelToConfig(model).status().message(), HasSubstr("model.norm_position"));
    model.norm_position = "auto";
    model.embedding_width = 8;
    EXPECT_THAT(ModelToConfig(model).status().message(), HasSubstr("model.embedding_width"));
  }
  ModelSpec model = Tiny();
  model.family = "gpt2";
  EXPECT_THAT(ModelToConfig(model).status().message(), HasSubstr("model.kv_heads"));
}

TEST(LlamaExport, WritesTheWeightFileOfTransformersAndRepeatsSharedBlocks) {
  for (const std::string name : {"llama", "llama3", "mistral", "qwen2"}) {
    SCOPED_TRACE(name);
    const ModelSpec model = Read(name);
    std::map<std::string, std::vector<float>> weights;
    Status status = ImportModel(Env::Posix(), kParity + name + "/start", model,
                                [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
                                  int64_t size = 1;
                                  for (int64_t extent : tensor.shape) size *= extent;
                                  weights[tensor.parameter].resize(static_cast<size_t>(size));
                                  return std::span(weights[tensor.parameter]);
                                });
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::string folder = ::testing::TempDir() + "llama_export_" + name;
    ASSERT_TRUE(Env::Posix().RemoveTree(folder).ok());
    const auto values = [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
      return std::span<const float>(weights.at(tensor.parameter));
    };
    ASSERT_TRUE(ExportModel(Env::Posix(), folder, model, values, {}).ok());
    EXPECT_EQ(*ReadFile(Env::Posix(), folder + "/model.safetensors"),
              *ReadFile(Env::Posix(), kParity + name + "/start/model.safetensors"));

    ModelSpec shared = model;
    shared.distinct_blocks = 1;
    ASSERT_TRUE(ExportModel(Env::Posix(), folder, shared, values, {}).ok());
    Result<SafetensorsFolder> files = SafetensorsFolder::Open(Env::Posix(), folder);
    ASSERT_TRUE(files.ok());
    const auto bytes = [&](const char* tensor) {
      const auto view = files->Find(tensor)->bytes;
      return std::vector<std::byte>(view.begin(), view.end());
    };
    EXPECT_EQ(bytes("model.layers.1.mlp.up_proj.weight"),
              bytes("model.layers.0.mlp.up_proj.weight"));
    EXPECT_TRUE(ReadModelConfig(Env::Posix(), folder, {}).ok());
  }
}

TEST(LlamaImport, AcceptsNamesWithoutPrefixAndOldBuffersAndReadsShards) {
  ModelSpec model = Tiny();
  model.layers = 1;
  std::vector<std::vector<float>> data;
  std::vector<SafetensorsTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
    size_t size = 1;
    for (uint64_t extent : shape) size *= extent;
    data.emplace_back(size, static_cast<float>(data.size() + 1));
    tensors.push_back({name, SafetensorsType::kF32, std::move(shape), {}, {}});
  };
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
    add(tensor.name.substr(std::string("model.").size()),
        {tensor.shape.begin(), tensor.shape.end()});
  }
  add("layers.0.self_attn.rotary_emb.inv_freq", {4});
  for (size_t i = 0; i < data.size(); ++i) tensors[i].bytes = std::as_bytes(std::span(data[i]));
  const std::string folder = ::testing::TempDir() + "llama_shards";
  ASSERT_TRUE(Env::Posix().RemoveTree(folder).ok());
  ASSERT_TRUE(Env::Posix().CreateDirs(folder).ok());
  ASSERT_TRUE(WriteSafetensorsFolder(Env::Posix(), folder, tensors, 10000).ok());
  ASSERT_TRUE(Env::Posix().FileExists(folder + "/model.safetensors.index.json"));
  float next = 0;
  std::vector<float> room(67 * 72);
  const auto buffer = [&](const HuggingFaceTensor&) -> Result<std::span<float>> {
    EXPECT_TRUE(next == 0 || room[0] == next);
    ++next;
    return std::span(room);
  };
  Status status = ImportModel(Env::Posix(), folder, model, buffer);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(room[0], next);
  model.untied_classifier = true;
  EXPECT_THAT(ImportModel(Env::Posix(), folder, model, buffer).message(),
              HasSubstr("missing lm_head.weight"));
}

}  // namespace
}  // namespace weft
