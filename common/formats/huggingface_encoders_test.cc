// Hugging Face folders of bert and vit. Those that transformers wrote are the fixtures of
// tests/parity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/safetensors_index.h"
#include "common/spec/model_family.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Weights = std::map<std::string, std::vector<float>>;

std::string Fixture(const std::string& name) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + name + "/start";
}

Json ConfigOf(const std::string& name) {
  return *ParseJson(*ReadFile(Env::Posix(), Fixture(name) + "/config.json"));
}

/// What stays as it was holds nines.
Result<Weights> Import(Env& env, const std::string& folder, const ModelSpec& model,
                       HeadWeights head = HeadWeights::kFromFile) {
  Weights weights;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
    size_t size = 1;
    for (int64_t extent : tensor.shape) size *= static_cast<size_t>(extent);
    weights[tensor.name].assign(size, 9.0f);
  }
  Status status = ImportModel(
      env, folder, model,
      [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
        return std::span(weights.at(tensor.name));
      },
      head);
  if (!status.ok()) return status;
  return weights;
}

/// The tensors of a fixture under other names, in a folder of their own.
void WriteRenamed(Env& env, const std::string& folder, const std::string& fixture,
                  const std::function<std::string(std::string)>& rename,
                  const std::vector<SafetensorsTensor>& more = {}) {
  auto files = SafetensorsFolder::Open(Env::Posix(), Fixture(fixture));
  ASSERT_TRUE(files.ok());
  std::vector<SafetensorsTensor> tensors = more;
  for (const auto& [name, view] : files->tensors()) {
    const std::string renamed = rename(name);
    if (!renamed.empty()) tensors.push_back({renamed, view->type, view->shape, view->bytes, {}});
  }
  ASSERT_TRUE(env.CreateDirs(folder).ok());
  ASSERT_TRUE(WriteSafetensorsFolder(env, folder, tensors, 1 << 30).ok());
}

std::string Replaced(std::string name, const std::string& from, const std::string& to) {
  if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  return name;
}

TEST(EncoderExport, WritesTheFolderOfTransformers) {
  for (const char* name : {"bert_mlm", "bert_classes", "vit"}) {
    SCOPED_TRACE(name);
    const ModelSpec model = *ReadModelConfig(Env::Posix(), Fixture(name), {});
    Result<Weights> weights = Import(Env::Posix(), Fixture(name), model);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    FaultEnv env;
    ExportOptions options;
    const Result<Tokenizer> tokenizer = Tokenizer::Load(
        Env::Posix(), WEFT_SOURCE_DIR "/common/formats/testdata/tokenizers/bert.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    options.tokenizer = &*tokenizer;
    const auto values = [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
      return std::span<const float>(weights->at(tensor.name));
    };
    ASSERT_TRUE(ExportModel(env, "/out", model, values, options).ok());

    auto written = SafetensorsFolder::Open(env, "/out");
    auto reference = SafetensorsFolder::Open(Env::Posix(), Fixture(name));
    ASSERT_TRUE(written.ok() && reference.ok());
    for (const auto& [tensor, view] : reference->tensors()) {
      // A tied copy, which transformers makes by itself.
      if (tensor == "cls.predictions.decoder.bias") continue;
      const SafetensorsView* ours = written->Find(std::string(tensor));
      ASSERT_NE(ours, nullptr) << tensor;
      EXPECT_EQ(ours->shape, view->shape) << tensor;
      EXPECT_TRUE(std::ranges::equal(ours->bytes, view->bytes)) << tensor;
    }
    EXPECT_LE(written->tensors().size(), reference->tensors().size());

    const Json config = *ParseJson(*ReadFile(env, "/out/config.json"));
    const Json expected = ConfigOf(name);
    const std::set<std::string> of_training = {"initializer_range", "torch_dtype"};
    for (const auto& [key, value] : config.items()) {
      if (expected.contains(key) && !of_training.contains(key)) {
        EXPECT_EQ(value, expected[key]) << key;
      }
    }
    for (const char* key : {"architectures", "model_type", "layer_norm_eps", "hidden_size"}) {
      EXPECT_EQ(config[key], expected[key]);
    }
    EXPECT_FALSE(env.FileExists("/out/generation_config.json"));
    const Json tokens = *ParseJson(*ReadFile(env, "/out/tokenizer_config.json"));
    EXPECT_EQ(tokens["mask_token"], "[MASK]");

    const ModelSpec again = *ReadModelConfig(env, "/out", {});
    EXPECT_EQ(HeadOf(again), HeadOf(model));
    EXPECT_EQ(*Import(env, "/out", again), *weights);
  }
}

TEST(EncoderExport, NamesClassesAndScalesImages) {
  ModelSpec model = *ReadModelConfig(Env::Posix(), Fixture("vit"), {});
  const Json config = *ModelToConfig(model, {"cat", "dog"});
  EXPECT_EQ(config["id2label"]["1"], "dog");
  EXPECT_EQ(config["label2id"]["cat"], 0);
  EXPECT_EQ(config["id2label"]["4"], "LABEL_4") << "as many as the model has";
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs("/f").ok());
  ASSERT_TRUE(WriteFileAtomic(env, "/f/config.json", config.dump()).ok());
  const ImportedHead head = *ReadHead(env, "/f");
  EXPECT_EQ(head.classes, 5);
  EXPECT_EQ(head.class_names[0], "cat");
  EXPECT_TRUE(ReadHead(Env::Posix(), Fixture("vit"))->class_names.empty()) << "LABEL_0, ...";

  DataSpec data;
  data.pixel_mean = 0.25;
  const Json preprocessor = *ParseJson(PreprocessorConfig(model, data));
  EXPECT_EQ(preprocessor["image_mean"], Json({0.25, 0.25, 0.25}));
  EXPECT_EQ(preprocessor["size"]["height"], 12);
}

TEST(EncoderImport, ReadsNormsOfGammaAndBetaAndOldBuffers) {
  FaultEnv env;
  const std::vector<int64_t> positions(24);
  WriteRenamed(env, "/old", "bert_mlm",
               [](std::string name) {
                 name = Replaced(name, "LayerNorm.weight", "LayerNorm.gamma");
                 return Replaced(name, "LayerNorm.bias", "LayerNorm.beta");
               },
               {{"bert.embeddings.position_ids",
                 SafetensorsType::kI64,
                 {1, 24},
                 std::as_bytes(std::span(positions)),
                 {}}});
  const ModelSpec model = *ReadModelConfig(Env::Posix(), Fixture("bert_mlm"), {});
  Result<Weights> old = Import(env, "/old", model);
  ASSERT_TRUE(old.ok()) << old.status().message();
  EXPECT_EQ(*old, *Import(Env::Posix(), Fixture("bert_mlm"), model));

  const std::vector<float> ones(32, 1.0f);
  WriteRenamed(env, "/both", "bert_mlm", [](std::string name) { return name; },
               {{"bert.embeddings.LayerNorm.gamma",
                 SafetensorsType::kF32,
                 {32},
                 std::as_bytes(std::span(ones)),
                 {}}});
  EXPECT_THAT(Import(env, "/both", model).status().message(),
              HasSubstr("bert.embeddings.LayerNorm.weight twice"));
}

TEST(EncoderImport, GivesABodyANewHead) {
  const struct {
    const char* fixture;
    const char* architecture;
    const char* left_out;  ///< Of the names.
    bool pooler;           ///< In the file.
    int64_t classes;
  } cases[] = {
      {"bert_mlm", "BertForMaskedLM", "", false, 3},
      {"bert_classes", "BertModel", "bert.", true, 3},
      {"bert_classes", "BertForSequenceClassification", "", true, 7},
      {"vit", "ViTModel", "vit.", false, 10},
      {"vit", "ViTForImageClassification", "", false, 10},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.architecture);
    FaultEnv env;
    const bool body_alone = std::string(c.architecture).ends_with("Model");
    WriteRenamed(env, "/f", c.fixture, [&](std::string name) -> std::string {
      if (body_alone && name.starts_with("classifier.")) return "";
      return name.starts_with(c.left_out) ? name.substr(std::strlen(c.left_out)) : name;
    });
    Json config = ConfigOf(c.fixture);
    config["architectures"] = {c.architecture};
    ASSERT_TRUE(WriteFileAtomic(env, "/f/config.json", config.dump()).ok());

    ModelSpec base;
    base.head = "classification";
    base.classes = c.classes;
    Result<ModelSpec> model = ReadModelConfig(env, "/f", base);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->classes, c.classes);
    EXPECT_EQ(HeadOf(*model), "classification");
    EXPECT_FALSE(HasHead(*ReadHead(env, "/f"), *model));
    EXPECT_EQ(ReadModelConfig(env, "/f", *model)->classes, c.classes) << "resolved once more";

    EXPECT_THAT(Import(env, "/f", *model).status().message(), HasSubstr("classifier."));
    Result<Weights> weights = Import(env, "/f", *model, HeadWeights::kLeaveAsTheyAre);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    for (const auto& [name, values] : *weights) {
      const bool left =
          name.starts_with("classifier.") || (name.starts_with("bert.pooler.") && !c.pooler);
      EXPECT_EQ(std::ranges::count(values, 9.0f) == std::ssize(values), left) << name;
    }
    if (body_alone && std::string(c.fixture) != "vit") {
      EXPECT_THAT(ReadModelConfig(env, "/f", {}).status().message(),
                  HasSubstr("model.head classification starts a new one"));
    }
  }
  // The body itself must be whole.
  FaultEnv env;
  WriteRenamed(env, "/f", "bert_mlm", [](std::string name) {
    return name == "bert.embeddings.word_embeddings.weight" ? "" : name;
  });
  ModelSpec base;
  base.head = "classification";
  base.classes = 2;
  EXPECT_THAT(Import(env, "/f", *ReadModelConfig(Env::Posix(), Fixture("bert_mlm"), base),
                     HeadWeights::kLeaveAsTheyAre)
                  .status()
                  .message(),
              AllOf(HasSubstr("missing bert.embeddings.word_embeddings.weight"),
                    Not(HasSubstr("classifier"))));
}

TEST(EncoderImport, NamesTensorsOfAnotherShape) {
  ModelSpec model = *ReadModelConfig(Env::Posix(), Fixture("vit"), {});
  model.patch_size = 6;
  EXPECT_THAT(Import(Env::Posix(), Fixture("vit"), model).status().message(),
              HasSubstr("vit.embeddings.position_embeddings is F32 [1, 10, 32] in the file, but "
                        "the model needs F32 [1, 5, 32]"));
  model = *ReadModelConfig(Env::Posix(), Fixture("bert_classes"), {});
  model.token_types = 3;
  EXPECT_THAT(Import(Env::Posix(), Fixture("bert_classes"), model).status().message(),
              HasSubstr("token_type_embeddings.weight"));
}

TEST(EncoderConfig, RefusesWhatTheEngineDoesNotCompute) {
  const struct {
    const char* fixture;
    const char* key;
    Json value;  ///< Null: the key is left out.
    const char* message;
  } cases[] = {
      {"bert_mlm", "hidden_act", "relu", "hidden_act"},
      {"bert_mlm", "hidden_size", nullptr, "no hidden_size"},
      {"bert_mlm", "hidden_size", "32", "must be a whole number"},
      {"bert_mlm", "hidden_size", 33, "a multiple of the heads"},
      {"bert_mlm", "hidden_size", -32, "width is -32, but must be"},
      {"bert_mlm", "hidden_size", 1ull << 40, "must be a whole number"},
      {"bert_mlm", "num_attention_heads", 0, "heads"},
      {"bert_mlm", "num_hidden_layers", 1 << 29, "layers"},
      {"bert_mlm", "vocab_size", 0, "vocab_size 0 must be positive"},
      {"bert_mlm", "max_position_embeddings", 0, "context"},
      {"bert_mlm", "type_vocab_size", -1, "token_types"},
      {"bert_mlm", "layer_norm_eps", "small", "layer_norm_eps"},
      {"bert_mlm", "is_decoder", true, "generates"},
      {"bert_mlm", "position_embedding_type", "relative_key", "absolute"},
      {"bert_mlm", "architectures", nullptr, "architectures in config.json is absent"},
      {"bert_mlm", "architectures", Json::array(), "architectures in config.json is []"},
      {"bert_mlm", "architectures", {"BertLMHeadModel"}, "BertForMaskedLM"},
      {"bert_mlm", "architectures", 7, "can be imported"},
      {"bert_classes", "id2label", Json::array(), "id2label"},
      {"bert_classes", "id2label", {{"0", "a"}, {"2", "b"}}, "no name for class 1 of 2"},
      {"bert_classes", "id2label", {{"0", "a"}, {"1", 7}}, "no name for class 1"},
      {"vit", "image_size", 13, "image_size 13 must be a multiple of patch_size 4"},
      {"vit", "patch_size", 0, "patch_size"},
      {"vit", "patch_size", nullptr, "no patch_size"},
      {"vit", "num_channels", 0, "image_channels"},
      {"vit", "num_channels", 1 << 20, "image_channels"},
      {"vit", "qkv_bias", false, "without biases"},
      {"vit", "architectures", {"ViTForMaskedImageModeling"}, "ViTForImageClassification"},
  };
  for (const auto& c : cases) {
    Json config = ConfigOf(c.fixture);
    config.erase(c.key);
    if (!c.value.is_null()) config[c.key] = c.value;
    Result<ModelSpec> model = ModelFromConfig(config, {});
    ASSERT_FALSE(model.ok()) << c.key << " " << c.value;
    EXPECT_EQ(model.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(model.status().message(), HasSubstr(c.message)) << c.key << " " << c.value;
  }
  ModelSpec base;
  base.head = "masked_lm";
  EXPECT_THAT(ModelFromConfig(ConfigOf("bert_classes"), base).status().message(),
              HasSubstr("without a head for masked tokens"));
  Json two = ConfigOf("bert_classes");
  two.erase("id2label");
  EXPECT_EQ(ModelFromConfig(two, {})->classes, 2) << "the default of transformers";
  two["num_labels"] = 3;
  EXPECT_EQ(ModelFromConfig(two, {})->classes, 3);
}

TEST(ResolveImportedModel, ChecksWhatTheJobAsksOfTheFolder) {
  const auto resolve = [](const std::string& fixture, const std::function<void(JobSpec&)>& change) {
    JobSpec job;
    job.model.import_path = Fixture(fixture);
    job.train.sequence_length = fixture == "vit" ? 0 : 16;
    job.data.batching = "pad_fixed";
    if (fixture != "vit") job.data.tokenizer.path = job.model.import_path;
    change(job);
    Status status = ResolveImportedModel(Env::Posix(), job);
    return status.ok() ? job.model.family + " " + HeadOf(job.model) : status.message();
  };
  EXPECT_EQ(resolve("vit", [](JobSpec&) {}), "vit classification");
  EXPECT_EQ(resolve("bert_mlm", [](JobSpec&) {}), "bert masked_lm");
  EXPECT_EQ(resolve("bert_mlm", [](JobSpec& job) { job.model.head = "classification"; }),
            "bert classification");
  EXPECT_THAT(resolve("bert_mlm", [](JobSpec& job) { job.data.tokenizer.path.clear(); }),
              HasSubstr("data.tokenizer.path is not"));
  EXPECT_THAT(resolve("vit", [](JobSpec& job) { job.train.sequence_length = 16; }),
              HasSubstr("is not that of a vit's images, 10"));
  EXPECT_THAT(resolve("bert_mlm", [](JobSpec& job) { job.train.sequence_length = 25; }),
              HasSubstr("longer than the context 24"));
  EXPECT_THAT(resolve("bert_classes", [](JobSpec& job) { job.data.batching = "concatenate"; }),
              HasSubstr("one document a sequence"));
  EXPECT_THAT(resolve("bert_mlm", [](JobSpec& job) { job.model.head = "causal_lm"; }),
              HasSubstr("model.head causal_lm"));
  EXPECT_THAT(resolve("gpt2", [](JobSpec& job) { job.model.head = "classification"; }),
              HasSubstr("does not go with model.family gpt2"));
  EXPECT_THAT(resolve("gpt2", [](JobSpec& job) { job.data.second_text_field = "b"; }),
              HasSubstr("data.second_text_field needs"));
}

}  // namespace
}  // namespace weft
