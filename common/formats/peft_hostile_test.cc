// Folders of adapters that are broken or made to do harm: each is refused, with a short message.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/huggingface_weights.h"
#include "common/formats/peft_adapter.h"
#include "common/json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

/// What tests/parity/make_adapter_fixtures.py wrote with peft.
std::string Fixture(const std::string& name) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + name;
}

std::string TextOf(const std::string& file) {
  auto text = ReadFile(Env::Posix(), Fixture(file));
  WEFT_CHECK(text.ok(), text.status().message());
  return *text;
}

/// An adapter of a fixture, for example gpt2/lora, to be changed.
struct Adapter {
  FaultEnv env;
  ModelSpec base;
  std::string config, weights;

  explicit Adapter(const std::string& name = "gpt2/lora")
      : config(TextOf(name + "/start/adapter_config.json")),
        weights(TextOf(name + "/start/adapter_model.safetensors")) {
    auto spec = ReadModelConfig(Env::Posix(), Fixture(name.substr(0, name.find('/'))) + "/start",
                                ModelSpec());
    WEFT_CHECK(spec.ok(), spec.status().message());
    base = *spec;
    WEFT_CHECK(env.CreateDirs("/adapter").ok(), "folder");
  }
  void Set(const std::string& key, const Json& value) {
    Json changed = *ParseJson(config);
    changed[key] = value;
    config = changed.dump();
  }
  /// Puts another text in the place of one that the configuration has.
  void Replace(const std::string& text, const std::string& with) {
    const size_t at = config.find(text);
    WEFT_CHECK(at != std::string::npos, text);
    config.replace(at, text.size(), with);
  }
  /// Writes another header before the same tensors.
  void ChangeHeader(const std::function<void(std::string&)>& change) {
    uint64_t length = 0;
    std::memcpy(&length, weights.data(), sizeof(length));
    std::string header = weights.substr(sizeof(length), length);
    const std::string data = weights.substr(sizeof(length) + length);
    change(header);
    length = header.size();
    weights.assign(sizeof(length), '\0');
    std::memcpy(weights.data(), &length, sizeof(length));
    weights += header + data;
  }
  /// What reading it says: one line that fits a screen.
  std::string Refusal() {
    WEFT_CHECK(WriteFileAtomic(env, "/adapter/adapter_config.json", config).ok(), "config");
    WEFT_CHECK(WriteFileAtomic(env, "/adapter/adapter_model.safetensors", weights).ok(), "weights");
    const std::string message = Read();
    EXPECT_LT(message.size(), 1000u);
    const auto is_control = [](char c) {
      const auto byte = static_cast<unsigned char>(c);
      return byte < 0x20 || byte == 0x7f;
    };
    EXPECT_TRUE(std::none_of(message.begin(), message.end(), is_control)) << message;
    return message;
  }
  std::string Read() {
    const auto peft = ReadAdapterConfig(env, "/adapter", base);
    if (!peft.ok()) return std::string(peft.status().message());
    ModelSpec model = base;
    model.peft = *peft;
    std::map<std::string, std::vector<float>> values;
    const auto buffer = [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
      std::vector<float>& own = values[tensor.parameter];
      own.resize(ElementCount(tensor));
      return std::span(own);
    };
    return std::string(ImportAdapter(env, "/adapter", model, buffer).message());
  }
};

TEST(HostileAdapters, ConfigurationsThatAreNoJsonAreRefused) {
  const std::string alpha = "\"lora_alpha\": 8";
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999"}) {
    Adapter adapter;
    adapter.Replace(alpha, "\"lora_alpha\": " + std::string(number));
    EXPECT_THAT(adapter.Refusal(), HasSubstr("not valid JSON")) << number;
  }
  Adapter twice;
  twice.Replace(alpha, alpha + ", \"lora_alpha\": 9");
  EXPECT_THAT(twice.Refusal(), HasSubstr("repeats the key \"lora_alpha\""));
  Adapter nested;
  nested.Replace(alpha, "\"lora_alpha\": " + std::string(100'000, '[') + std::string(100'000, ']'));
  EXPECT_THAT(nested.Refusal(), HasSubstr("nested deeper than 64 levels"));
  Adapter large;
  large.config.append(size_t{4} << 20, ' ');
  EXPECT_THAT(large.Refusal(), HasSubstr("bytes, and at most 4194304 are read"));
}

TEST(HostileAdapters, FoldersOfWeftsOwnAreReadWithinTheSameLimits) {
  Adapter adapter;
  const auto refusal = [&](const std::string& text) {
    WEFT_CHECK(WriteFileAtomic(adapter.env, "/adapter/weft_adapter.json", text).ok(), "write");
    return adapter.Refusal();
  };
  EXPECT_THAT(refusal(R"({"version": 1, "adapter": {"method": "houlsby", "reduction_factor": 0}})"),
              HasSubstr("reduction_factor"));
  EXPECT_THAT(refusal(R"({"version": 1, "adapter": {"method": "lora"}})"),
              HasSubstr("has other folders"));
  EXPECT_THAT(refusal(R"({"adapter": {"method": "houlsby"}})"), HasSubstr("has no version"));
  EXPECT_THAT(refusal(R"({"version": 2, "adapter": {"method": "houlsby"}})"),
              HasSubstr("of houlsby is not of version 1"));
  EXPECT_THAT(refusal(R"({"version": 1, "adapter": {"method": "pfeiffer"}})"),
              HasSubstr("of pfeiffer is not of version 2; hint: train the adapter again"));
  EXPECT_THAT(refusal(std::string(size_t{5} << 20, ' ')), HasSubstr("at most 4194304 are read"));
}

TEST(HostileAdapters, SettingsOutOfRangeAreRefusedByName) {
  Json many = Json::object();
  for (int i = 0; i <= 4096; ++i) many["layer" + std::to_string(i)] = 2;
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"r", -4, "has r -4, which is no number from 1 to 4096"},
      {"r", std::numeric_limits<int64_t>::min(), "which is no number from 1 to 4096"},
      {"r", std::numeric_limits<uint64_t>::max(), "which is no number from 1 to 4096"},
      {"r", std::string(100'000, '9'), "which is no number from 1 to 4096"},
      {"lora_alpha", -1, "has lora_alpha -1, which is no number from 0 to 1000000"},
      {"lora_alpha", 1e300, "which is no number from 0 to 1000000"},
      {"lora_alpha", "NaN", "which is no number from 0 to 1000000"},
      {"rank_pattern", {{"c_attn", -1}}, "has rank_pattern.c_attn -1, which is no number"},
      {"alpha_pattern", {{"c_attn", -1}}, "has alpha_pattern.c_attn -1, which is no number"},
      {"rank_pattern", {{"(c_attn", 2}}, "'(c_attn' is no regular expression"},
      {"rank_pattern", {{std::string(100'000, '('), 2}}, "is no regular expression"},
      {"rank_pattern", {{"(.+)+nn", 2}}, "'(.+)+nn' on 'transformer.h.0.attn.c_attn': "},
      {"alpha_pattern", {{"(.+)+nn", 2}}, "; hint: a simpler one"},
      {"rank_pattern", many, "which has 4097 patterns; at most 4096 are read"},
      {"a\x1b[2J\n", 3, "has a?[2J? 3, which is not computed"},
  };
  for (const auto& each : cases) {
    Adapter adapter;
    adapter.Set(each.key, each.value);
    EXPECT_THAT(adapter.Refusal(), HasSubstr(each.message)) << each.key;
  }
}

// The tensors say which layers there are.
TEST(HostileAdapters, AnEndlessTargetIsReadAsTheLayersOfTheFile) {
  Adapter adapter;
  adapter.Set("target_modules", "(.+)+nn");
  EXPECT_EQ(adapter.Refusal(), "");
  const auto peft = ReadAdapterConfig(adapter.env, "/adapter", adapter.base);
  ASSERT_TRUE(peft.ok()) << peft.status().message();
  EXPECT_EQ(peft->target_regex, "");
  EXPECT_EQ(peft->target_modules.size(), 6u);
}

TEST(HostileAdapters, CutTensorsOfEachMethodAreRefused) {
  for (const char* name :
       {"gpt2/adalora", "gpt2/dora", "gpt2/ia3", "gpt2/ln_tuning", "gpt2/prefix", "gpt2/tokens",
        "gpt2/tokens_alone", "llama/miss", "llama/prompt", "bert_classes/p_tuning"}) {
    const Adapter whole(name);
    for (const size_t size : {size_t{0}, size_t{7}, size_t{9}, whole.weights.size() / 2,
                              whole.weights.size() - 1, whole.weights.size()}) {
      Adapter adapter(name);
      adapter.weights.resize(size);
      EXPECT_EQ(adapter.Refusal().empty(), size == whole.weights.size()) << name << " " << size;
    }
  }
}

TEST(HostileAdapters, HeadersThatLieAreRefused) {
  const auto refusal = [](const std::string& key, const Json& value) {
    Adapter adapter;
    adapter.ChangeHeader([&](std::string& header) {
      Json tensors = *ParseJson(header);
      for (auto it = tensors.begin(); it != tensors.end(); ++it) {
        Json& tensor = it.value();
        if (!tensor.contains("data_offsets") || tensor["data_offsets"][0] != 0) continue;
        tensor[key] = value;
      }
      header = tensors.dump();
    });
    return adapter.Refusal();
  };
  EXPECT_THAT(refusal("shape", {4096, 4096}), HasSubstr("which takes 67108864 bytes, but spans "));
  EXPECT_THAT(refusal("shape", {uint64_t{1} << 40, uint64_t{1} << 40}), HasSubstr("overflows"));
  EXPECT_THAT(refusal("shape", {-4, -32}), HasSubstr("not a whole number"));
  EXPECT_THAT(refusal("data_offsets", {0, uint64_t{1} << 40}), HasSubstr("past the end of the"));
  Adapter longer;
  std::memset(longer.weights.data(), 0xff, sizeof(uint64_t));
  EXPECT_THAT(longer.Refusal(), HasSubstr("header of 18446744073709551615 bytes"));
  Adapter twice;
  twice.ChangeHeader([](std::string& header) {
    Json tensors = *ParseJson(header);
    tensors.erase("__metadata__");
    const std::string name = tensors.begin().key();
    header = tensors.dump();
    header.insert(header.size() - 1, "," + Json(name).dump() + ":" + tensors[name].dump());
  });
  EXPECT_THAT(twice.Refusal(), HasSubstr("repeats the key"));
}

TEST(HostileAdapters, NamesOfTensorsAreNamesAlone) {
  const std::pair<const char*, const char*> cases[] = {
      {"../../../etc/passwd", "a tensor '../../../etc/passwd', which is neither of an adapter"},
      {"\x1b[2J\n", "a tensor '?[2J?', which is neither of an adapter"},
  };
  for (const auto& [name, message] : cases) {
    Adapter adapter;
    adapter.ChangeHeader([renamed = std::string(name)](std::string& header) {
      Json tensors = *ParseJson(header);
      tensors.erase("__metadata__");
      const std::string first = tensors.begin().key();
      tensors[renamed] = tensors[first];
      tensors.erase(first);
      header = tensors.dump();
    });
    EXPECT_THAT(adapter.Refusal(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace weft
