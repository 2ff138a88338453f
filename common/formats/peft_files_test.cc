// What files of adapters hold: the types of their tensors, and layers that get no adapters.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/dtype.h"
#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/huggingface_weights.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

constexpr char kConfig[] = "/adapter/adapter_config.json";
constexpr char kWeights[] = "/adapter/adapter_model.safetensors";

using Values = std::map<std::string, std::vector<float>>;

/// What tests/parity/make_adapter_fixtures.py wrote with peft.
std::string Fixture(const std::string& name) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + name;
}

ModelSpec BaseOf(const std::string& family) {
  auto spec = ReadModelConfig(Env::Posix(), Fixture(family) + "/start", ModelSpec());
  WEFT_CHECK(spec.ok(), spec.status().message());
  return *spec;
}

/// The family of the network that a fixture adapts; those of an old version have it in their name.
std::string FamilyOf(const std::string& adapter) {
  const std::string old = "peft_0_8/";
  if (!adapter.starts_with(old)) return adapter.substr(0, adapter.find('/'));
  return adapter.substr(old.size(), adapter.find('_', old.size()) - old.size());
}

/// A copy of the adapter of a fixture, for example gpt2/lora/trained, in /adapter.
struct Folder {
  FaultEnv env;
  ModelSpec model;
  std::vector<SafetensorsTensor> tensors;

  explicit Folder(const std::string& adapter)
      : model(BaseOf(FamilyOf(adapter))), file_(Opened(adapter)) {
    const auto config = ReadFile(Env::Posix(), Fixture(adapter) + "/adapter_config.json");
    WEFT_CHECK(config.ok(), config.status().message());
    WEFT_CHECK(env.CreateDirs("/adapter").ok(), "folder");
    WEFT_CHECK(WriteFileAtomic(env, kConfig, *config).ok(), "config");
    for (const SafetensorsView& view : file_.tensors()) {
      tensors.push_back({view.name, view.type, view.shape, view.bytes, {}});
    }
  }
  void Write() { WEFT_CHECK(WriteSafetensors(env, kWeights, tensors).ok(), "weights"); }
  /// Rounds every second tensor to a type of two bytes.
  void Round(SafetensorsType type) {
    for (size_t i = 0; i < tensors.size(); i += 2) {
      std::vector<float> floats(tensors[i].bytes.size() / sizeof(float));
      ReadFloats({tensors[i].name, tensors[i].type, tensors[i].shape, tensors[i].bytes}, 0, floats);
      std::vector<uint16_t>& bits = rounded_.emplace_back();
      for (const float each : floats) {
        bits.push_back(type == SafetensorsType::kBF16 ? ToBFloat16(each).bits : ToHalf(each).bits);
      }
      tensors[i].type = type;
      tensors[i].bytes = std::as_bytes(std::span(bits));
    }
  }
  /// Adds factors of a layer.
  void Adapt(const std::string& layer,
             const std::vector<std::string>& factors = {".lora_A.weight", ".lora_B.weight"}) {
    for (const std::string& factor : factors) {
      tensors.push_back({"base_model.model." + layer + factor,
                         SafetensorsType::kF32,
                         {2, 2},
                         std::as_bytes(std::span(kFactor)),
                         {}});
    }
  }
  /// What reading it says.
  std::string Refusal() {
    Write();
    return std::string(ReadAdapterConfig(env, "/adapter", model).status().message());
  }

 private:
  static constexpr float kFactor[4] = {};
  static SafetensorsFile Opened(const std::string& adapter) {
    auto file =
        SafetensorsFile::Open(Env::Posix(), Fixture(adapter) + "/adapter_model.safetensors");
    WEFT_CHECK(file.ok(), file.status().message());
    return *std::move(file);
  }

  SafetensorsFile file_;
  std::deque<std::vector<uint16_t>> rounded_;
};

/// Reads the adapter in /adapter and writes it to /out.
void WriteAgain(Folder& folder, const std::string& read_from) {
  auto peft = ReadAdapterConfig(folder.env, "/adapter", folder.model);
  ASSERT_TRUE(peft.ok()) << peft.status().message();
  ModelSpec model = folder.model;
  model.peft = *peft;
  Values values;
  const auto buffer = [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
    std::vector<float>& own = values[tensor.parameter];
    own.resize(ElementCount(tensor));
    return std::span(own);
  };
  const Status read = ImportAdapter(folder.env, "/adapter", model, buffer);
  ASSERT_TRUE(read.ok()) << read.message();
  const Status written =
      ExportAdapter(folder.env, "/out", model, {.read_from = read_from},
                    [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
                      return std::span<const float>(values.at(tensor.parameter));
                    });
  ASSERT_TRUE(written.ok()) << written.message();
}

/// The tensors in /out are those in /adapter.
void ExpectSameTensors(Folder& folder) {
  const auto before = SafetensorsFile::Open(folder.env, kWeights);
  const auto after = SafetensorsFile::Open(folder.env, "/out/adapter_model.safetensors");
  ASSERT_TRUE(before.ok() && after.ok());
  ASSERT_EQ(after->tensors().size(), before->tensors().size());
  for (const SafetensorsView& tensor : before->tensors()) {
    const SafetensorsView* const same = after->Find(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    EXPECT_EQ(same->type, tensor.type) << tensor.name;
    EXPECT_EQ(same->shape, tensor.shape) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(same->bytes, tensor.bytes)) << tensor.name;
  }
}

/// The adapters of each family and method that peft has trained, and those of an old version.
std::vector<std::string> SavedAdapters() {
  std::vector<std::string> adapters;
  for (const std::string family : {"bert_classes", "bert_mlm", "gpt2", "llama", "mistral",
                                   "mixtral", "qwen2", "vit", "peft_0_8"}) {
    const auto names = Env::Posix().ListDir(Fixture(family));
    WEFT_CHECK(names.ok(), names.status().message());
    for (const std::string& name : *names) {
      for (const char* const state : {"", "/trained"}) {
        const std::string adapter = family + "/" + name + state;
        const bool saved = Env::Posix().FileExists(Fixture(adapter) + "/adapter_config.json");
        if (saved) adapters.push_back(adapter);
      }
    }
  }
  return adapters;
}

TEST(PeftFiles, TensorsKeepTheTypesOfTheFileThatTheyWereReadFrom) {
  for (const char* adapter :
       {"gpt2/lora/trained", "llama/miss/trained", "llama/lokr/trained", "llama/adalora/start",
        "llama/prompt/trained", "bert_classes/prefix/trained"}) {
    for (const SafetensorsType type : {SafetensorsType::kBF16, SafetensorsType::kF16}) {
      SCOPED_TRACE(std::string(adapter) + " " + std::string(SafetensorsTypeName(type)));
      Folder folder(adapter);
      folder.Round(type);
      folder.Write();
      ASSERT_NO_FATAL_FAILURE(WriteAgain(folder, "/adapter"));
      ExpectSameTensors(folder);
    }
  }
}

TEST(PeftFiles, TensorsThatPeftSavedAreWrittenByteForByte) {
  for (const std::string& adapter : SavedAdapters()) {
    SCOPED_TRACE(adapter);
    Folder folder(adapter);
    folder.Write();
    ASSERT_NO_FATAL_FAILURE(WriteAgain(folder, ""));
    ExpectSameTensors(folder);
  }
}

TEST(PeftFiles, TensorsThatWereTrainedAreF32) {
  Folder folder("gpt2/lora/trained");
  folder.Round(SafetensorsType::kBF16);
  folder.Write();
  ASSERT_NO_FATAL_FAILURE(WriteAgain(folder, ""));
  const auto after = SafetensorsFile::Open(folder.env, "/out/adapter_model.safetensors");
  ASSERT_TRUE(after.ok());
  for (const SafetensorsView& tensor : after->tensors()) {
    EXPECT_EQ(tensor.type, SafetensorsType::kF32) << tensor.name;
  }
}

TEST(PeftFiles, LayersThatGetNoAdaptersAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"gpt2", "lm_head"},  // which has the table of tokens
      {"gpt2", "transformer.wpe"},
      {"bert_mlm", "cls.predictions.decoder"},
      {"mixtral", "model.layers.1.block_sparse_moe.gate"},
  };
  for (const auto& [family, layer] : cases) {
    SCOPED_TRACE(std::string(family) + " " + layer);
    const std::string adapter = std::string(family) + "/lora/start";
    ASSERT_EQ(Folder(adapter).Refusal(), "");
    Folder folder(adapter);
    folder.Adapt(layer);
    EXPECT_THAT(folder.Refusal(),
                AllOf(HasSubstr("adapter_model.safetensors adapts " + std::string(layer) +
                                ", and adapters are trained on linear layers, "),
                      HasSubstr("modules_to_save"), Not(HasSubstr("base model"))));
  }
  Folder many("mixtral/lora/start");
  for (const char* layer :
       {"model.norm", "model.layers.1.block_sparse_moe.gate", "model.layers.0.input_layernorm",
        "model.layers.0.block_sparse_moe.gate"}) {
    many.Adapt(layer);
  }
  EXPECT_THAT(many.Refusal(),
              HasSubstr("adapts model.layers.0.block_sparse_moe.gate, "
                        "model.layers.0.input_layernorm, model.layers.1.block_sparse_moe.gate and "
                        "1 more, and "));
  // Methods other than lora have none outside the blocks.
  Folder other("llama/miss/start");
  other.Adapt("lm_head", {".miss_block"});
  EXPECT_THAT(other.Refusal(), HasSubstr("adapts lm_head, and adapters are trained on "));
  // The adapter belongs to another network.
  Folder unknown("llama/lora/start");
  unknown.Adapt("model.layers.7.self_attn.q_proj");
  EXPECT_THAT(unknown.Refusal(), HasSubstr("must be the adapter's base model"));
}

// Both versions of transformers name the modules outside the blocks alike.
TEST(PeftFiles, AVitHasTheNamesOfTheVersionThatWroteIt) {
  const auto read = [](Folder& folder) {
    folder.Write();
    auto peft = ReadAdapterConfig(folder.env, "/adapter", folder.model);
    WEFT_CHECK(peft.ok(), peft.status().message());
    return *peft;
  };
  Folder older("vit/head/trained"), newer("vit/head_5/trained"), regex("vit/lora_5/trained");
  EXPECT_EQ(read(older).module_names, "transformers_4");
  EXPECT_THAT(read(older).target_modules, ElementsAre("classifier", "projection", "query"));
  EXPECT_EQ(read(newer).module_names, "transformers_5");
  EXPECT_THAT(read(newer).target_modules, ElementsAre("classifier", "projection", "q_proj"));
  EXPECT_EQ(read(regex).target_regex, R"(.*\.layers\.\d+\.mlp\.fc[12])");
  EXPECT_THAT(read(regex).rank_pattern, ElementsAre(Pair("fc1", 2)));
  // Those of the job do not count.
  newer.model.peft.module_names = "transformers_4";
  older.model.peft.module_names = "transformers_5";
  EXPECT_EQ(read(newer).module_names, "transformers_5");
  EXPECT_EQ(read(older).module_names, "transformers_4");
}

TEST(PeftFiles, NamesOfBothVersionsInOneFileOrOfNeitherAreRefused) {
  for (const auto& [adapter, other] :
       {std::pair("vit/head_5/trained", "vit.encoder.layer.0.attention.attention.key"),
        std::pair("vit/head/trained", "vit.layers.0.attention.k_proj"),
        std::pair("vit/head_5/trained", "vit.layers.0.attention.qkv"),
        std::pair("vit/head/trained", "vit.blocks.0.attn.qkv"),
        std::pair("llama/lora/trained", "vit.layers.0.attention.k_proj")}) {
    SCOPED_TRACE(std::string(adapter) + " and " + other);
    Folder folder(adapter);
    folder.Adapt(other);
    EXPECT_THAT(folder.Refusal(), AllOf(HasSubstr("has a tensor 'base_model.model.vit."),
                                        HasSubstr("must be the adapter's base model")));
  }
}

TEST(PeftFiles, HeadsOfClassifyingDecodersAreRefusedAsSuch) {
  for (const char* tensor : {".weight", ".modules_to_save.weight"}) {
    Folder folder("gpt2/lora/start");
    folder.Adapt("score", {tensor});
    EXPECT_THAT(folder.Refusal(),
                AllOf(HasSubstr("has the head of a classifier (score), and a gpt2 "),
                      Not(HasSubstr("base model"))));
  }
}

}  // namespace
}  // namespace weft
