#include "common/formats/huggingface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "common/formats/byte_alphabet.h"
#include "common/formats/safetensors_index.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kTiny = std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/gpt2_tiny";

using Weights = std::map<std::string, std::vector<float>>;

std::string MakeFolder() {
  std::string folder = ::testing::TempDir() + "huggingface_" +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name();
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
  EXPECT_TRUE(Env::Posix().CreateDirs(folder).ok());
  return folder;
}

std::string Load(const std::string& path) {
  Result<std::string> text = ReadFile(Env::Posix(), path);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return text.ok() ? *text : "";
}

ModelSpec TinyModel() {
  Result<ModelSpec> model = ReadModelConfig(Env::Posix(), kTiny, {});
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? *model : ModelSpec{};
}

/// Imports into fresh memory; the embedding gets `padding` more rows of 9.
Result<Weights> Import(const std::string& folder, const ModelSpec& model, int64_t padding = 0) {
  Weights weights;
  Status status = ImportModel(Env::Posix(), folder, model,
                              [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
                                int64_t size = 1;
                                for (int64_t extent : tensor.shape) size *= extent;
                                if (tensor.name == "transformer.wte.weight")
                                  size += padding * model.width;
                                auto& values = weights[tensor.name];
                                values.assign(static_cast<size_t>(size), 9.0f);
                                return std::span(values);
                              });
  if (!status.ok()) return status;
  return weights;
}

/// A tensor of the tiny model's file under its name in the file.
std::vector<float> FileValues(const SafetensorsFolder& files, const std::string& name) {
  const SafetensorsView* view = files.Find(name);
  EXPECT_NE(view, nullptr) << name;
  std::vector<float> values(view->bytes.size() / 4);
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

TEST(Gpt2Config, TakesSizesFromTheFileAndLeavesTrainingChoices) {
  ModelSpec base;
  base.dropout = 0.25;
  base.attention_dropout = 0.125;
  base.import_path = "x";
  Result<ModelSpec> model = ReadModelConfig(Env::Posix(), kTiny, base);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->layers, 2);
  EXPECT_EQ(model->width, 8);
  EXPECT_EQ(model->heads, 2);
  EXPECT_EQ(model->mlp_width, 20);
  EXPECT_EQ(model->vocab_size, 11);
  EXPECT_EQ(model->context, 6);
  EXPECT_EQ(model->norm_epsilon, 1e-5);
  EXPECT_EQ(model->dropout, 0.25);
  EXPECT_EQ(model->attention_dropout, 0.125);
  EXPECT_EQ(model->import_path, "x");
}

TEST(Gpt2Config, RefusesWhatTheEngineDoesNotCompute) {
  Result<Json> sound = ParseJson(Load(kTiny + "/config.json"));
  ASSERT_TRUE(sound.ok());
  struct Case {
    const char* key;
    Json value;
    const char* reason;
  };
  const std::vector<Case> cases = {
      {"model_type", "t5", "can be imported"},
      {"quantization_config", Json::object(), "quantised"},
      {"activation_function", "gelu", "gelu_new"},
      {"activation_function", nullptr, "gelu_new"},
      {"scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx"},
      {"scale_attn_weights", false, "scale_attn_weights"},
      {"tie_word_embeddings", "no", "tie_word_embeddings"},
      {"add_cross_attention", true, "add_cross_attention"},
      {"n_layer", "two", "n_layer"},
      {"n_layer", -1, "layers is -1"},
      {"n_embd", -8, "width is -8"},
      {"n_embd", 9, "multiple"},
      {"n_embd", 18446744073709551615u, "n_embd"},
      {"n_inner", 0.5, "n_inner"},
      {"vocab_size", 0, "vocab_size"},
      {"layer_norm_epsilon", "small", "layer_norm_epsilon"},
  };
  for (const Case& c : cases) {
    Json config = *sound;
    config[c.key] = c.value;
    Result<ModelSpec> model = ModelFromConfig(config, {});
    ASSERT_FALSE(model.ok()) << c.key;
    EXPECT_EQ(model.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(model.status().message(), HasSubstr(c.reason));
  }
  for (const char* key : {"n_layer", "n_embd", "n_head", "n_positions", "vocab_size"}) {
    Json config = *sound;
    config.erase(key);
    EXPECT_THAT(ModelFromConfig(config, {}).status().message(), HasSubstr(key));
  }
  EXPECT_EQ(ModelFromConfig(Json::array(), {}).status().code(), StatusCode::kInvalid);
  Json config = *sound;
  config["something_new"] = {{"deep", true}};
  EXPECT_TRUE(ModelFromConfig(config, {}).ok());
}

TEST(Gpt2Config, ReadsBackWhatItWrites) {
  ModelSpec model = TinyModel();
  for (int64_t inner : {0, 20}) {
    model.mlp_width = inner;
    Result<ModelSpec> again = ModelFromConfig(*ModelToConfig(model), {});
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(MlpWidth(*again), MlpWidth(model));
    EXPECT_EQ(again->vocab_size, model.vocab_size);
    EXPECT_EQ(again->heads, model.heads);
  }
}

TEST(Gpt2Import, TransposesLinearWeightsAndCopiesTheRest) {
  const ModelSpec model = TinyModel();
  Result<Weights> weights = Import(kTiny, model, 5);
  ASSERT_TRUE(weights.ok()) << weights.status().ToString();
  Result<SafetensorsFolder> files = SafetensorsFolder::Open(Env::Posix(), kTiny);
  ASSERT_TRUE(files.ok());
  const std::vector<HuggingFaceTensor> tensors = HuggingFaceTensors(model);
  EXPECT_EQ(tensors.size(), files->tensors().size());
  for (const HuggingFaceTensor& tensor : tensors) {
    std::vector<float> file = FileValues(*files, tensor.name);
    const std::vector<float>& got = (*weights)[tensor.name];
    if (!tensor.transposed) {
      file.resize(got.size(), 9.0f);  // padded rows stay as they were
      EXPECT_EQ(got, file) << tensor.name;
      continue;
    }
    const int64_t out = tensor.shape[0];
    const int64_t in = tensor.shape[1];
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) ASSERT_EQ(got[o * in + i], file[i * out + o]) << tensor.name;
    }
  }
  EXPECT_EQ((*weights)["transformer.h.1.mlp.c_fc.weight"].size(), 20u * 8);
  EXPECT_EQ((*weights)["transformer.wte.weight"].size(), 16u * 8);
}

TEST(Gpt2Import, AcceptsOldNamesMaskBuffersTiedOutputAndNarrowTypes) {
  const ModelSpec model = TinyModel();
  Result<SafetensorsFolder> files = SafetensorsFolder::Open(Env::Posix(), kTiny);
  ASSERT_TRUE(files.ok());
  for (SafetensorsType type : {SafetensorsType::kBF16, SafetensorsType::kF16}) {
    // Small whole numbers are exact in both narrow types: 0, 1, 2, 3, -4, ...
    const std::vector<float> numbers = {0, 1, 2, 3, -4};
    const std::vector<uint16_t> brain = {0x0000, 0x3f80, 0x4000, 0x4040, 0xc080};
    const std::vector<uint16_t> half = {0x0000, 0x3c00, 0x4000, 0x4200, 0xc400};
    const std::vector<uint16_t>& encoded = type == SafetensorsType::kBF16 ? brain : half;
    std::vector<std::vector<uint16_t>> data;
    std::vector<SafetensorsTensor> tensors;
    auto add = [&](const std::string& name, const std::vector<uint64_t>& shape) {
      size_t size = 1;
      for (uint64_t extent : shape) size *= extent;
      std::vector<uint16_t> values(size);
      for (size_t i = 0; i < size; ++i) values[i] = encoded[i % 5];
      data.push_back(std::move(values));
      tensors.push_back({name, type, shape, std::as_bytes(std::span(data.back())), {}});
    };
    for (const auto& [name, view] : files->tensors()) {
      add(name.substr(std::string("transformer.").size()), view->shape);
    }
    add("h.0.attn.bias", {1, 1, 6, 6});
    add("h.1.attn.masked_bias", {});
    add("lm_head.weight", {11, 8});
    const std::string folder = MakeFolder();
    ASSERT_TRUE(WriteSafetensorsFolder(Env::Posix(), folder, tensors, 1 << 30).ok());
    Result<Weights> weights = Import(folder, model);
    ASSERT_TRUE(weights.ok()) << weights.status().ToString();
    for (size_t i = 0; i < 88; ++i)
      EXPECT_EQ((*weights)["transformer.wte.weight"][i], numbers[i % 5]);
    // Element [o][i] of c_proj is at i * 8 + o in the file.
    EXPECT_EQ((*weights)["transformer.h.0.mlp.c_proj.weight"][3 * 20 + 7],
              numbers[(7 * 8 + 3) % 5]);
  }
}

TEST(Gpt2Import, NamesWhatIsMissingUnknownOrOfAnotherShape) {
  ModelSpec model = TinyModel();
  model.layers = 3;
  EXPECT_THAT(Import(kTiny, model).status().message(),
              ::testing::AllOf(HasSubstr("missing transformer.h.2.ln_1.weight"),
                               HasSubstr("4 more"), Not(HasSubstr("unknown"))));
  model.layers = 1;
  EXPECT_THAT(Import(kTiny, model).status().message(),
              HasSubstr("unknown transformer.h.1.attn.c_attn.bias"));
  model = TinyModel();
  model.mlp_width = 16;
  EXPECT_THAT(
      Import(kTiny, model).status().message(),
      HasSubstr("transformer.h.0.mlp.c_fc.weight is F32 [8, 20] in the file, but the model needs "
                "F32 [8, 16]"));
  EXPECT_EQ(Import(MakeFolder(), model).status().code(), StatusCode::kInvalid);
}

TEST(Gpt2Import, RefusesWeightsThatAreNotNumbers) {
  const std::string folder = MakeFolder();
  const std::string sound = Load(kTiny + "/model.safetensors");
  for (const char* last : {"\x00\x00\x80\x7f", "\x00\x00\x80\xff", "\x01\x00\xc0\x7f"}) {
    std::string bytes = sound;
    bytes.replace(bytes.size() - 4, 4, last, 4);
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), folder + "/model.safetensors", bytes).ok());
    const Status status = Import(folder, TinyModel()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(folder), HasSubstr("NaN or infinite")));
  }
}

TEST(Gpt2Import, RefusesAnOutputProjectionOfItsOwn) {
  const std::string folder = MakeFolder();
  const std::vector<float> ones(88, 1.0f);
  const std::vector<float> twos(88, 2.0f);
  ASSERT_TRUE(
      WriteSafetensorsFolder(
          Env::Posix(), folder,
          {{"wte.weight", SafetensorsType::kF32, {11, 8}, std::as_bytes(std::span(ones)), {}},
           {"lm_head.weight", SafetensorsType::kF32, {11, 8}, std::as_bytes(std::span(twos)), {}}},
          1 << 30)
          .ok());
  EXPECT_THAT(Import(folder, TinyModel()).status().message(), HasSubstr("tie_word_embeddings"));
}

/// A byte-level tokenizer whose end of text is token 10.
Tokenizer EndTokenAt10() {
  TokenizerDefinition definition;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == 10) definition.tokens.emplace_back();
    definition.tokens.push_back(BytesToAlphabet(std::string(1, static_cast<char>(byte))));
  }
  definition.added = {{.id = 10, .content = "<|endoftext|>", .special = true}};
  Result<Tokenizer> tokenizer = Tokenizer::Create(definition);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return *std::move(tokenizer);
}

TEST(Gpt2Export, WritesTheSameWeightFileAsTransformers) {
  const ModelSpec model = TinyModel();
  Result<Weights> weights = Import(kTiny, model, 5);
  ASSERT_TRUE(weights.ok());
  const std::string folder = MakeFolder() + "/export";
  ExportOptions options;
  const Tokenizer tokenizer = EndTokenAt10();
  options.tokenizer = &tokenizer;
  Status status = ExportModel(
      Env::Posix(), folder, model,
      [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
        return std::span<const float>((*weights)[tensor.name]);
      },
      options);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(Load(folder + "/model.safetensors"), Load(kTiny + "/model.safetensors"));
  EXPECT_EQ(Load(folder + "/tokenizer.json"), tokenizer.content());
  Result<Json> config = ParseJson(Load(folder + "/config.json"));
  Result<Json> reference = ParseJson(Load(kTiny + "/config.json"));
  ASSERT_TRUE(config.ok() && reference.ok());
  for (const char* key : {"activation_function", "architectures", "bos_token_id", "eos_token_id",
                          "layer_norm_epsilon", "model_type", "n_embd", "n_head", "n_inner",
                          "n_layer", "n_positions", "vocab_size", "tie_word_embeddings"}) {
    EXPECT_EQ((*config)[key], (*reference)[key]) << key;
  }
  Result<Json> described = ParseJson(Load(folder + "/tokenizer_config.json"));
  ASSERT_TRUE(described.ok());
  EXPECT_EQ((*described)["eos_token"], "<|endoftext|>");
}

}  // namespace
}  // namespace weft
