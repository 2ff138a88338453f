// Adapters on the network that they were trained on, and on another one.
#include "common/formats/peft_base.h"

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"
#include "common/json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr char kData[] = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/";

std::string TextOf(const std::string& file) {
  auto text = ReadFile(Env::Posix(), kData + file);
  WEFT_CHECK(text.ok(), text.status().message());
  return *text;
}

/// A network in /base and an adapter of it in /adapter, as peft and transformers write them.
struct Folders {
  FaultEnv env;
  Json base_config = *ParseJson(TextOf("start/config.json"));
  Json adapter_config = *ParseJson(TextOf("lora/start/adapter_config.json"));

  Folders() {
    for (const char* folder : {"/base", "/adapter"}) {
      WEFT_CHECK(env.CreateDirs(folder).ok(), folder);
    }
    Write("/base/model.safetensors", TextOf("start/model.safetensors"));
    Write("/adapter/adapter_model.safetensors", TextOf("lora/start/adapter_model.safetensors"));
  }
  void Write(const std::string& path, const std::string& text) {
    WEFT_CHECK(WriteFileAtomic(env, path, text).ok(), path);
  }
  ModelSpec Model() {
    Write("/base/config.json", base_config.dump());
    Write("/adapter/adapter_config.json", adapter_config.dump());
    auto model = ReadModelConfig(env, "/base", ModelSpec());
    WEFT_CHECK(model.ok(), model.status().message());
    model->import_path = "/base";
    return *model;
  }
  /// What reading the configuration of the adapter says.
  std::string Refusal() {
    const ModelSpec model = Model();
    return std::string(ReadAdapterConfig(env, "/adapter", model).status().message());
  }
  std::string Hash(const std::string& folder) {
    auto hash = HashOfBase(env, folder, Model());
    WEFT_CHECK(hash.ok(), hash.status().message());
    return *hash;
  }
  /// Writes the adapter with a hash of its base.
  void WriteHash(const std::string& hash) {
    auto file = SafetensorsFile::Open(env, "/adapter/adapter_model.safetensors");
    WEFT_CHECK(file.ok(), "open");
    std::vector<SafetensorsTensor> tensors;
    for (const SafetensorsView& view : file->tensors()) {
      tensors.push_back({view.name, view.type, view.shape, view.bytes, {}});
    }
    const auto written = WriteSafetensors(env, "/adapter/adapter_model.safetensors", tensors,
                                          {{kBaseHashKey, hash}});
    WEFT_CHECK(written.ok(), "write");
  }
  std::string HashRefusal() {
    return std::string(CheckBaseHash(env, "/adapter", "/base", Model()).message());
  }
};

TEST(PeftBase, TwoNamesOfTheHubMustBeOfOneNetwork) {
  const auto refusal = [](const Json& of_adapter, const Json& of_base) {
    Folders folders;
    folders.adapter_config["base_model_name_or_path"] = of_adapter;
    folders.base_config["_name_or_path"] = of_base;
    return folders.Refusal();
  };
  EXPECT_THAT(refusal("gpt2", "openai-community/gpt2-medium"),
              HasSubstr("has base_model_name_or_path gpt2, and /base is "
                        "openai-community/gpt2-medium (_name_or_path of its config.json); hint: "
                        "model.import_path of gpt2, or clear one of these fields"));
  EXPECT_NE(refusal("owner/one", "owner/other"), "");
  EXPECT_EQ(refusal("gpt2", "openai-community/gpt2"), "");
  EXPECT_EQ(refusal("gpt2", nullptr), "");
  EXPECT_EQ(refusal(nullptr, "gpt2"), "");
  EXPECT_EQ(refusal("", "gpt2"), "");
  // Folders that are gone.
  for (const char* gone : {"/home/user/models/other", "./other", "../other", "~/other",
                           "models/of/other", "C:\\models\\other"}) {
    EXPECT_EQ(refusal(gone, "gpt2"), "") << gone;
    EXPECT_EQ(refusal("gpt2", gone), "") << gone;
  }
  // This one is not gone, and it is the base.
  EXPECT_EQ(refusal("/base", "gpt2"), "");
}

TEST(PeftBase, AFolderThatIsThereHasTheNameOfItsOwnConfiguration) {
  Folders folders;
  ASSERT_TRUE(folders.env.CreateDirs("/trained").ok());
  folders.Write("/trained/config.json", R"({"_name_or_path": "owner/trained"})");
  folders.adapter_config["base_model_name_or_path"] = "/trained";
  folders.base_config["_name_or_path"] = "owner/other";
  EXPECT_THAT(folders.Refusal(), HasSubstr("base_model_name_or_path owner/trained, and /base is "));
  folders.Write("/trained/config.json", R"({"_name_or_path": "other"})");
  EXPECT_EQ(folders.Refusal(), "");
}

TEST(PeftBase, AnAdapterWithTheHashOfItsBaseFitsThatAlone) {
  Folders folders;
  EXPECT_EQ(folders.HashRefusal(), "") << "those of peft have none";
  const std::string hash = folders.Hash("/base");
  EXPECT_EQ(hash.size(), 64u);
  folders.WriteHash(hash);
  EXPECT_EQ(folders.HashRefusal(), "");
  auto file = SafetensorsFile::Open(folders.env, "/base/model.safetensors");
  ASSERT_TRUE(file.ok());
  std::vector<float> changed;
  std::vector<SafetensorsTensor> tensors;
  for (const SafetensorsView& view : file->tensors()) {
    tensors.push_back({view.name, view.type, view.shape, view.bytes, {}});
  }
  for (SafetensorsTensor& tensor : tensors) {
    if (!tensor.name.ends_with("ln_f.bias")) continue;
    const auto* const values = reinterpret_cast<const float*>(tensor.bytes.data());
    changed.assign(values, values + tensor.bytes.size() / sizeof(float));
    changed.back() += 1e-3f;
    tensor.bytes = std::as_bytes(std::span(changed));
  }
  ASSERT_FALSE(changed.empty());
  ASSERT_TRUE(WriteSafetensors(folders.env, "/base/model.safetensors", tensors).ok());
  EXPECT_THAT(folders.HashRefusal(),
              HasSubstr("the adapter in /adapter was trained on other weights (base_model_sha256 " +
                        hash + ") than those in /base ("));
  EXPECT_THAT(folders.HashRefusal(), HasSubstr("hint: model.import_path of the network"));
}

TEST(PeftBase, TheTypeOfTheFileDoesNotChangeTheHash) {
  Folders folders;
  auto file = SafetensorsFile::Open(folders.env, "/base/model.safetensors");
  ASSERT_TRUE(file.ok());
  // Numbers that bf16 has, in bf16 and in f32.
  std::vector<std::vector<uint16_t>> halves;
  std::vector<std::vector<float>> floats;
  std::vector<SafetensorsTensor> narrow, wide;
  for (const SafetensorsView& view : file->tensors()) {
    const size_t count = view.bytes.size() / sizeof(float);
    const auto* const bits = reinterpret_cast<const uint32_t*>(view.bytes.data());
    std::vector<uint16_t>& half = halves.emplace_back();
    std::vector<float>& whole = floats.emplace_back();
    for (size_t i = 0; i < count; ++i) {
      half.push_back(static_cast<uint16_t>(bits[i] >> 16));
      whole.push_back(std::bit_cast<float>(uint32_t{half.back()} << 16));
    }
    narrow.push_back({view.name, SafetensorsType::kBF16, view.shape, {}, {}});
    wide.push_back({view.name, SafetensorsType::kF32, view.shape, {}, {}});
  }
  for (size_t i = 0; i < narrow.size(); ++i) {
    narrow[i].bytes = std::as_bytes(std::span(halves[i]));
    wide[i].bytes = std::as_bytes(std::span(floats[i]));
  }
  std::vector<std::string> hashes;
  for (const auto* tensors : {&narrow, &wide}) {
    ASSERT_TRUE(WriteSafetensors(folders.env, "/base/model.safetensors", *tensors).ok());
    hashes.push_back(folders.Hash("/base"));
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(PeftBase, ExportsHaveTheHashNextToTheFormat) {
  Folders folders;
  ModelSpec model = folders.Model();
  auto peft = ReadAdapterConfig(folders.env, "/adapter", model);
  ASSERT_TRUE(peft.ok());
  model.peft = *peft;
  const std::vector<float> zeros(1 << 16, 0.0f);
  const auto values = [&](const HuggingFaceTensor&) -> Result<std::span<const float>> {
    return std::span<const float>(zeros);
  };
  ASSERT_TRUE(
      ExportAdapter(folders.env, "/out", model, {.base_sha256 = std::string(64, 'a')}, values)
          .ok());
  auto written = SafetensorsFile::Open(folders.env, "/out/adapter_model.safetensors");
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(written->metadata(),
            (SafetensorsMetadata{{"base_model_sha256", std::string(64, 'a')}, {"format", "pt"}}));
}

// All keys that peft 0.4 writes of a LoRA, and those of 0.6 and 0.7 besides.
TEST(PeftBase, AdaptersOfOldVersionsAreRead) {
  Folders folders;
  folders.adapter_config = *ParseJson(R"({
    "auto_mapping": null, "base_model_name_or_path": "gpt2", "bias": "none",
    "fan_in_fan_out": true, "inference_mode": true, "init_lora_weights": true,
    "layers_pattern": null, "layers_to_transform": null, "lora_alpha": 8, "lora_dropout": 0.05,
    "modules_to_save": null, "peft_type": "LORA", "r": 4, "revision": null,
    "target_modules": ["c_attn", "c_proj"], "task_type": "CAUSAL_LM"})");
  for (const Json& more : {Json::object(), Json{{"rank_pattern", Json::object()},
                                                {"alpha_pattern", Json::object()},
                                                {"loftq_config", Json::object()},
                                                {"megatron_config", nullptr},
                                                {"megatron_core", "megatron.core"}}}) {
    folders.adapter_config.update(more);
    ModelSpec model = folders.Model();
    auto peft = ReadAdapterConfig(folders.env, "/adapter", model);
    ASSERT_TRUE(peft.ok()) << peft.status().message();
    EXPECT_EQ(peft->method, "lora");
    EXPECT_EQ(peft->rank, 4);
    EXPECT_EQ(peft->alpha, 8);
    EXPECT_FALSE(peft->use_rslora);
    EXPECT_FALSE(peft->use_dora);
    model.peft = *peft;
    std::vector<float> values;
    const Status read =
        ImportAdapter(folders.env, "/adapter", model, [&](const HuggingFaceTensor& tensor) {
          size_t count = 1;
          for (const int64_t each : tensor.shape) count *= each;
          values.resize(count);
          return Result<std::span<float>>(std::span(values));
        });
    EXPECT_TRUE(read.ok()) << read.message();
  }
}

TEST(PeftBase, PicklesOfOldVersionsAreRefusedWithTheWayToConvertThem) {
  Folders folders;
  ASSERT_TRUE(folders.env.RemoveFile("/adapter/adapter_model.safetensors").ok());
  folders.Write("/adapter/adapter_model.bin", "PK");
  EXPECT_THAT(folders.Refusal(),
              HasSubstr("/adapter has a PyTorch pickle, adapter_model.bin, and no "
                        "adapter_model.safetensors; hint: convert it in Python: "
                        "safetensors.torch.save_file(torch.load('adapter_model.bin', "
                        "map_location='cpu', weights_only=True), 'adapter_model.safetensors')"));
}

}  // namespace
}  // namespace weft
