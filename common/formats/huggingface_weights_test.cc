// Weights under other names, with buffers, and twice: what is taken, and what is refused. The
// folders are those that transformers wrote for tests/parity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/safetensors_index.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Weights = std::map<std::string, std::vector<float>>;

/// A folder's tensors, to be changed and written again.
struct Folder {
  explicit Folder(const std::string& family) {
    auto files = SafetensorsFolder::Open(Env::Posix(), Fixture(family));
    EXPECT_TRUE(files.ok());
    for (const auto& [name, view] : files->tensors()) {
      shapes[name] = view->shape;
      values[name].resize(view->bytes.size() / sizeof(float));
      std::memcpy(values[name].data(), view->bytes.data(), view->bytes.size());
    }
    model = *ReadModelConfig(Env::Posix(), Fixture(family), {});
  }

  static std::string Fixture(const std::string& family) {
    return WEFT_SOURCE_DIR "/tests/parity/testdata/" + family + "/start";
  }

  void Rename(const std::string& from, const std::string& to) {
    values[to] = values.extract(from).mapped();
    shapes[to] = shapes.extract(from).mapped();
  }

  void Copy(const std::string& from, const std::string& to) {
    values[to] = values[from];
    shapes[to] = shapes[from];
  }

  void Add(const std::string& name, std::vector<uint64_t> shape) {
    size_t count = 1;
    for (uint64_t extent : shape) count *= extent;
    values[name].assign(count, 0.5f);
    shapes[name] = std::move(shape);
  }

  void Erase(const std::string& name) {
    values.erase(name);
    shapes.erase(name);
  }

  Result<Weights> Import() const {
    FaultEnv env;
    WEFT_RETURN_IF_ERROR(env.CreateDirs("/in"));
    std::vector<SafetensorsTensor> tensors;
    for (const auto& [name, of_tensor] : values) {
      tensors.push_back(
          {name, SafetensorsType::kF32, shapes.at(name), std::as_bytes(std::span(of_tensor)), {}});
    }
    WEFT_RETURN_IF_ERROR(WriteSafetensorsFolder(env, "/in", std::move(tensors), 1 << 30));
    return ImportFrom(env, "/in", model);
  }

  std::string Error() const { return Import().status().message(); }

  static Result<Weights> ImportFrom(Env& env, const std::string& folder, const ModelSpec& model) {
    Weights weights;
    WEFT_RETURN_IF_ERROR(ImportModel(
        env, folder, model, [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
          size_t size = 1;
          for (int64_t extent : tensor.shape) size *= static_cast<size_t>(extent);
          auto& buffer = weights[tensor.parameter];
          buffer.assign(size, 9.0f);
          return std::span(buffer);
        }));
    return weights;
  }

  ModelSpec model;
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<uint64_t>> shapes;
};

TEST(ImportedNames, MayHaveWhatWrappersPutIntoThem) {
  for (const std::string family : {"gpt2", "llama", "bert_mlm", "vit"}) {
    const Weights plain = *Folder(family).Import();
    for (const std::string prefix : {"module.", "_orig_mod.", "_orig_mod.module.",
                                     "module._orig_mod.", "_fsdp_wrapped_module."}) {
      Folder folder(family);
      for (const auto& [name, shape] : Folder(family).shapes) folder.Rename(name, prefix + name);
      const Result<Weights> weights = folder.Import();
      ASSERT_TRUE(weights.ok()) << weights.status().message();
      EXPECT_EQ(*weights, plain) << family << " " << prefix;
    }
  }
  Folder inner("llama");
  for (const auto& [name, shape] : Folder("llama").shapes) {
    if (name.starts_with("model.layers.0.")) {
      inner.Rename(name, "model.layers.0._checkpoint_wrapped_module." + name.substr(15));
    }
  }
  EXPECT_EQ(*inner.Import(), *Folder("llama").Import());
  Folder twice("llama");
  twice.Copy("model.norm.weight", "module.model.norm.weight");
  EXPECT_THAT(twice.Error(), HasSubstr("model.norm.weight twice"));
}

TEST(ImportedBuffers, AreIgnoredInEveryFamily) {
  const std::map<std::string, std::vector<std::string>> buffers = {
      {"bert_mlm", {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}},
      {"bert_classes", {"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}},
      {"gpt2", {"transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"}},
      {"llama",
       {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq",
        "model.rotary_emb.original_inv_freq", "model.layers.1.self_attn.rotary_emb.cos_cached",
        "model.layers.1.self_attn.rotary_emb.sin_cached"}},
  };
  for (const auto& [family, names] : buffers) {
    Folder folder(family);
    for (const std::string& name : names) folder.Add(name, {1, 24});
    const Result<Weights> weights = folder.Import();
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(*weights, *Folder(family).Import());
  }
}

TEST(ImportedCopies, MustEqualWhatTheyAreTiedToInEveryFamily) {
  const struct {
    const char* family;
    const char* copy;
    const char* of;
  } cases[] = {
      {"gpt2", "lm_head.weight", "transformer.wte.weight"},
      {"llama3", "lm_head.weight", "model.embed_tokens.weight"},
      {"bert_mlm", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
      {"bert_mlm", "cls.predictions.decoder.bias", "cls.predictions.bias"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.copy);
    const Weights plain = *Folder(c.family).Import();
    Folder folder(c.family);
    folder.Copy(c.of, c.copy);
    EXPECT_EQ(*folder.Import(), plain);
    Folder alone = folder;
    alone.Erase(c.of);
    ASSERT_TRUE(alone.Import().ok()) << alone.Error();
    EXPECT_EQ(*alone.Import(), plain) << "one that is alone is the other";
    folder.values[c.copy].back() += 1e-3f;
    EXPECT_THAT(folder.Error(), AllOf(HasSubstr(c.copy), HasSubstr(c.of),
                                      HasSubstr("tie_word_embeddings to false")));
  }
}

/// A bert whose decoder is a matrix of its own, with biases under both names.
Folder UntiedBert() {
  Folder folder("bert_mlm");
  folder.model.untied_classifier = true;
  folder.Copy("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight");
  folder.values["cls.predictions.decoder.weight"][0] = 3;
  folder.Copy("cls.predictions.bias", "cls.predictions.decoder.bias");
  folder.values["cls.predictions.bias"].assign(67, 1.0f);
  folder.values["cls.predictions.decoder.bias"].assign(67, 2.0f);
  return folder;
}

TEST(ImportedUntiedDecoder, HasTheBiasThatTransformers5ComputesWith) {
  Folder folder = UntiedBert();
  Result<Weights> weights = folder.Import();
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  EXPECT_EQ(weights->at("cls.predictions.bias"), std::vector<float>(67, 2.0f));
  EXPECT_EQ(weights->at("cls.predictions.decoder.weight")[0], 3);
  folder.Erase("cls.predictions.decoder.bias");
  EXPECT_EQ(folder.Import()->at("cls.predictions.bias"), std::vector<float>(67, 1.0f))
      << "transformers 4 writes it under this name alone";
  folder.Erase("cls.predictions.bias");
  EXPECT_THAT(folder.Error(), HasSubstr("missing cls.predictions.decoder.bias"));
}

TEST(ExportedUntiedDecoder, HasItsBiasUnderBothNames) {
  const Folder folder = UntiedBert();
  const Weights weights = *folder.Import();
  FaultEnv env;
  const auto values = [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
    return std::span<const float>(weights.at(tensor.parameter));
  };
  ASSERT_TRUE(ExportModel(env, "/out", folder.model, values, {}).ok());
  auto written = SafetensorsFolder::Open(env, "/out");
  ASSERT_TRUE(written.ok());
  for (const char* name : {"cls.predictions.bias", "cls.predictions.decoder.bias"}) {
    ASSERT_NE(written->Find(name), nullptr) << name;
    float first = 0;
    std::memcpy(&first, written->Find(name)->bytes.data(), sizeof(first));
    EXPECT_EQ(first, 2.0f) << name;
  }
  const ModelSpec again = *ReadModelConfig(env, "/out", {});
  EXPECT_EQ(*Folder::ImportFrom(env, "/out", again), weights);
}

TEST(ImportedNames, ThatDoNotFitGetAHint) {
  Folder untied("gpt2");
  untied.model.untied_classifier = true;
  EXPECT_THAT(untied.Error(), AllOf(HasSubstr("missing lm_head.weight;"),
                                    HasSubstr("tie_word_embeddings to true")));
  Folder decoder("bert_mlm");
  decoder.model.untied_classifier = true;
  EXPECT_THAT(decoder.Error(), AllOf(HasSubstr("missing cls.predictions.decoder.weight"),
                                     HasSubstr("tie_word_embeddings to true")));
  Folder fused("llama");
  fused.Rename("model.layers.0.self_attn.q_proj.weight",
               "model.layers.0.self_attn.qkv_proj.weight");
  EXPECT_THAT(fused.Error(), AllOf(HasSubstr("unknown model.layers.0.self_attn.qkv_proj.weight"),
                                   HasSubstr("several matrices in one (qkv_proj)")));
  Folder other("llama");
  other.Rename("model.norm.weight", "model.norm.scale");
  EXPECT_THAT(other.Error(), HasSubstr("config.json must belong to these weights"));
}

TEST(ExportedTypes, AreRoundedAndReadBack) {
  const Folder folder("llama");
  Weights weights = *folder.Import();
  const auto values = [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
    return std::span<const float>(weights.at(tensor.parameter));
  };
  const struct {
    DType dtype;
    const char* name;
    SafetensorsType type;
    float error;  // half a unit in the last place, relative
  } cases[] = {{DType::kF32, "float32", SafetensorsType::kF32, 0},
               {DType::kBF16, "bfloat16", SafetensorsType::kBF16, 1.0f / 256},
               {DType::kF16, "float16", SafetensorsType::kF16, 1.0f / 2048}};
  for (const auto& c : cases) {
    FaultEnv env;
    ExportOptions options;
    options.dtype = c.dtype;
    ASSERT_TRUE(ExportModel(env, "/out", folder.model, values, options).ok());
    EXPECT_EQ((*ParseJson(*ReadFile(env, "/out/config.json")))["torch_dtype"], c.name);
    auto written = SafetensorsFolder::Open(env, "/out");
    for (const auto& [name, view] : written->tensors()) EXPECT_EQ(view->type, c.type) << name;
    const Weights back = *Folder::ImportFrom(env, "/out", folder.model);
    for (const auto& [name, expected] : weights) {
      for (size_t i = 0; i < expected.size(); ++i) {
        // Below 2^-14 the steps of a half do not get finer.
        ASSERT_NEAR(back.at(name)[i], expected[i], c.error * std::fabs(expected[i]) + 3e-8f)
            << name;
      }
    }
  }
  weights.begin()->second[0] = 70000;
  FaultEnv env;
  ExportOptions options;
  options.dtype = DType::kF16;
  EXPECT_THAT(ExportModel(env, "/out", folder.model, values, options).message(),
              AllOf(HasSubstr(weights.begin()->first), HasSubstr("70000"), HasSubstr("float16")));
  EXPECT_FALSE(env.FileExists("/out/config.json"));
}

}  // namespace
}  // namespace weft
