// Keys that a config.json leaves out mean what transformers takes for them, or are asked for. What
// its classes have is in testdata/config_defaults.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/huggingface.h"
#include "common/model/model_sizes.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Json Defaults() {
  return *ParseJson(
      *ReadFile(Env::Posix(), WEFT_SOURCE_DIR "/common/formats/testdata/config_defaults.json"));
}

Json WithArchitecture(Json config) {
  if (config["model_type"] == "bert") config["architectures"] = {"BertForMaskedLM"};
  if (config["model_type"] == "vit") config["architectures"] = {"ViTForImageClassification"};
  return config;
}

/// A job whose own sizes are those of no model.
ModelSpec OddJob() {
  ModelSpec job;
  job.layers = 77;
  job.norm_epsilon = 0.5;
  job.rope_theta = 3;
  job.rope_scaling = {"linear", 7, 2, 3, 5};
  job.kv_heads = 11;
  job.sliding_window = 13;
  job.qkv_bias = true;
  job.untied_classifier = true;
  job.token_types = 9;
  job.mlp_width = 17;
  job.experts = 3;
  return job;
}

/// What both come to; sizes of the other families may differ.
std::string Comparable(const ModelSpec& model) {
  Json json = ToJson(model);
  json["kv_heads"] = KvHeads(model);  // 0 means as many as there are heads
  if (model.family != "bert") json.erase("token_types");
  if (model.family != "llama") {
    for (const char* key :
         {"rope_theta", "rope_scaling", "sliding_window", "qkv_bias", "experts"}) {
      json.erase(key);
    }
  }
  if (model.family == "vit") json.erase("untied_classifier");
  return json.dump(1);
}

TEST(ConfigDefaults, AreThoseOfTransformersOrAskedFor) {
  int taken = 0, asked_for = 0;
  const Json versions = Defaults();
  for (const auto& [version, types] : versions.items()) {
    for (const auto& [type, defaults] : types.items()) {
      SCOPED_TRACE("transformers " + version + ", " + type);
      const Json full = WithArchitecture(defaults);
      const Result<ModelSpec> expected = ModelFromConfig(full, {});
      ASSERT_TRUE(expected.ok()) << expected.status().message();
      for (const auto& [key, value] : defaults.items()) {
        Json config = full;
        config.erase(key);
        const Result<ModelSpec> model = ModelFromConfig(config, OddJob());
        if (model.ok()) {
          EXPECT_EQ(Comparable(*model), Comparable(*expected)) << "without " << key;
          ++taken;
        } else {
          EXPECT_THAT(model.status().message(), HasSubstr(key));
          ++asked_for;
        }
      }
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(asked_for, 50);
}

Json Config(const std::string& type, const Json& changes) {
  Json config = Defaults()["5"][type];
  for (const char* key : {"rope_parameters", "layer_types"}) config.erase(key);
  config.update(changes);
  return config;
}

const Json kLlama3 = {
    {"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};

TEST(ConfigDefaults, StretchedRotaryEmbeddingsNeedTheirFactors) {
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    Json rope = kLlama3;
    rope.erase(key);
    EXPECT_THAT(
        ModelFromConfig(Config("llama", {{"rope_parameters", rope}}), {}).status().message(),
        HasSubstr(key));
  }
  EXPECT_THAT(ModelFromConfig(Config("llama", {{"rope_scaling", {{"type", "linear"}}}}), {})
                  .status()
                  .message(),
              HasSubstr("factor"));
}

TEST(ConfigDefaults, TheStretchedContextIsOutsideInsideOrTheContext) {
  const auto original = [](const Json& changes, const Json& inside) {
    Json all = changes;
    all["rope_scaling"] = kLlama3;
    all["rope_scaling"].update(inside);
    return ModelFromConfig(Config("llama", all), OddJob());
  };
  const char* key = "original_max_position_embeddings";
  EXPECT_EQ(original(Json::object(), Json::object())->rope_scaling.original_context, 2048);
  EXPECT_EQ(original(Json::object(), {{key, 512}})->rope_scaling.original_context, 512);
  EXPECT_EQ(original({{key, 16}}, Json::object())->rope_scaling.original_context, 16);
  EXPECT_EQ(original({{key, 16}}, {{key, 16}})->rope_scaling.original_context, 16);
  EXPECT_THAT(original({{key, 16}}, {{key, 512}}).status().message(),
              AllOf(HasSubstr("16"), HasSubstr("512")));
}

TEST(ConfigDefaults, RefuseTwoWaysToSayWhatIsRotated) {
  const auto error = [](const Json& changes) {
    return ModelFromConfig(Config("llama", changes), {}).status().message();
  };
  EXPECT_THAT(error({{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 5e5}}}}),
              AllOf(HasSubstr("rope_theta 10000"), HasSubstr("500000")));
  EXPECT_THAT(error({{"rope_scaling", kLlama3}, {"rope_parameters", {{"rope_type", "default"}}}}),
              AllOf(HasSubstr("rope_scaling"), HasSubstr("rope_parameters")));
  EXPECT_THAT(error({{"partial_rotary_factor", 0.5}}), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(error({{"rope_parameters", {1, 2}}}), HasSubstr("must be an object"));
  EXPECT_EQ(error({{"rope_scaling", kLlama3}, {"rope_parameters", kLlama3}}), "");
  EXPECT_EQ(error({{"rope_scaling", nullptr}, {"rope_parameters", kLlama3}}), "");
}

TEST(ConfigDefaults, WindowsAreThoseOfTheirModelType) {
  const auto window = [](const std::string& type, Json changes) {
    changes["max_position_embeddings"] = 8192;
    Json config = Config(type, changes);
    for (const auto& [key, value] : changes.items()) {
      if (value == "absent") config.erase(key);
    }
    Result<ModelSpec> model = ModelFromConfig(config, OddJob());
    return model.ok() ? std::to_string(model->sliding_window) : model.status().message();
  };
  EXPECT_EQ(window("mistral", {{"sliding_window", "absent"}}), "4096");
  EXPECT_EQ(window("mistral", {{"sliding_window", nullptr}}), "0");
  EXPECT_EQ(window("mixtral", {{"sliding_window", "absent"}}), "0");
  EXPECT_EQ(window("llama", {{"sliding_window", 12}}), "0");
  EXPECT_EQ(window("qwen2", {{"sliding_window", 12}}), "0") << "use_sliding_window is false";
  EXPECT_EQ(window("qwen2", {{"use_sliding_window", true},
                             {"max_window_layers", 0},
                             {"sliding_window", "absent"}}),
            "4096");
  EXPECT_THAT(window("qwen2", {{"use_sliding_window", true},
                               {"max_window_layers", "absent"},
                               {"sliding_window", 12}}),
              HasSubstr("max_window_layers in config.json is 28"));
  EXPECT_EQ(window("qwen2", {{"use_sliding_window", true},
                             {"max_window_layers", "absent"},
                             {"sliding_window", 12},
                             {"num_hidden_layers", 28}}),
            "0");
  const Json sliding(std::vector<std::string>(32, "sliding_attention"));
  EXPECT_THAT(window("qwen2", {{"layer_types", sliding}, {"sliding_window", 12}}),
              HasSubstr("use_sliding_window"));
  EXPECT_EQ(
      window("qwen2",
             {{"layer_types", sliding}, {"sliding_window", 12}, {"use_sliding_window", true}}),
      "12");
  EXPECT_THAT(
      window("mistral", {{"layer_types", Json(std::vector<std::string>(32, "full_attention"))},
                         {"sliding_window", 12}}),
      HasSubstr("sliding_window"));
}

TEST(ConfigDefaults, TakeEitherNameOfGpt2sSizesAndRefuseBoth) {
  Json config = Defaults()["5"]["gpt2"];
  for (const auto& [key, alias] :
       {std::pair("n_embd", "hidden_size"), std::pair("n_layer", "num_hidden_layers"),
        std::pair("n_head", "num_attention_heads"),
        std::pair("n_positions", "max_position_embeddings")}) {
    config[alias] = config[key];
    EXPECT_TRUE(ModelFromConfig(config, {}).ok());
    config[alias] = 24;
    EXPECT_THAT(ModelFromConfig(config, {}).status().message(),
                AllOf(HasSubstr(key), HasSubstr(alias)));
    config[alias] = config[key];
    config.erase(key);
  }
  const Result<ModelSpec> model = ModelFromConfig(config, {});
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->width, 768);
  EXPECT_EQ(model->context, 1024);
}

TEST(ConfigDefaults, NullMeansAbsent) {
  EXPECT_TRUE(ModelFromConfig(Config("llama", {{"quantization_config", nullptr}}), {}).ok());
  EXPECT_EQ(ModelFromConfig(Config("mistral", {{"num_key_value_heads", nullptr}}), {})->kv_heads,
            0);
  Json config = Config("mistral", Json::object());
  config.erase("num_key_value_heads");
  EXPECT_EQ(ModelFromConfig(config, {})->kv_heads, 8);
}

TEST(ConfigDefaults, TheActivationIsThatOfTheFile) {
  const struct {
    const char *family, *key, *plain;
  } families[] = {{"gpt2", "activation_function", "gelu_new"}, {"vit", "hidden_act", "gelu"}};
  for (const auto& [family, key, plain] : families) {
    ModelSpec base;
    base.activation = "squared_relu";
    Json config = WithArchitecture(Defaults()["5"][family]);
    config[key] = plain;
    Result<ModelSpec> model = ModelFromConfig(config, base);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->activation, "auto");
    EXPECT_EQ((*ModelToConfig(*model, {}))[key], plain);
    config[key] = "relu2";
    model = ModelFromConfig(config, {});
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->activation, "squared_relu");
    EXPECT_EQ((*ModelToConfig(*model, {}))[key], "relu2");
  }
}

TEST(ConfigDefaults, RefuseObjectivesThatAreNotTrained) {
  Json config = Defaults()["5"]["bert"];
  config["architectures"] = {"BertForSequenceClassification"};
  EXPECT_TRUE(ModelFromConfig(config, {}).ok());
  for (const char* type : {"regression", "multi_label_classification"}) {
    config["problem_type"] = type;
    EXPECT_THAT(ModelFromConfig(config, {}).status().message(), HasSubstr(type));
  }
}

}  // namespace
}  // namespace weft
