// Settings of an adapter_config.json that say the same in other words than a job does.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/json.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Fixture(const std::string& name) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + name;
}

/// What is read of an adapter that make_adapter_fixtures.py wrote (gpt2/lora), its configuration
/// changed.
Result<PeftSpec> ReadChanged(const std::string& adapter, const Json& changes) {
  FaultEnv env;
  const std::string folder = Fixture(adapter) + "/start/";
  const auto model = ReadModelConfig(
      Env::Posix(), Fixture(adapter.substr(0, adapter.find('/'))) + "/start", ModelSpec());
  const auto text = ReadFile(Env::Posix(), folder + "adapter_config.json");
  const auto weights = ReadFile(Env::Posix(), folder + "adapter_model.safetensors");
  WEFT_CHECK(model.ok() && text.ok() && weights.ok(), folder);
  Json config = *ParseJson(*text);
  config.update(changes);
  WEFT_CHECK(env.CreateDirs("/adapter").ok(), "folder");
  WEFT_CHECK(WriteFileAtomic(env, "/adapter/adapter_config.json", config.dump()).ok(), "config");
  WEFT_CHECK(WriteFileAtomic(env, "/adapter/adapter_model.safetensors", *weights).ok(), "weights");
  return ReadAdapterConfig(env, "/adapter", *model);
}

std::string RefusalOf(const std::string& adapter, const Json& changes) {
  return std::string(ReadChanged(adapter, changes).status().message());
}

TEST(PeftSettings, APissaInStepsIsAPissa) {
  for (const char* init : {"pissa", "pissa_niter_4", "pissa_niter_16"}) {
    const auto read = ReadChanged("llama/pissa", {{"init_lora_weights", init}});
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->init, "pissa") << init;
  }
  for (const char* init : {"pissa_niter_", "pissa_niter_four", "pissa_niter_-1", "pissa_4"}) {
    EXPECT_THAT(RefusalOf("llama/pissa", {{"init_lora_weights", init}}),
                HasSubstr(std::string(init) + "\", which is not computed"));
  }
}

TEST(PeftSettings, BiasesOfAdaptedLayersAloneHaveAWord) {
  // attn.c_proj, which ends with the same part, has no adapter.
  const auto read = ReadChanged("gpt2/lora_only", Json::object());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(read->modules_to_save,
              ElementsAre("*transformer.h.0.mlp.c_proj.bias", "*transformer.h.1.mlp.c_proj.bias"));
  const auto short_names = ReadChanged("gpt2/vera", {{"bias", "vera_only"}});
  ASSERT_TRUE(short_names.ok()) << short_names.status().message();
  EXPECT_EQ(short_names->modules_to_save.front(), "*.c_attn.bias");
  // A llama has no biases.
  const auto none = ReadChanged("llama/oft", {{"bias", "oft_only"}});
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_THAT(none->modules_to_save, IsEmpty());
  EXPECT_THAT(RefusalOf("gpt2/lora", {{"bias", "some"}}), HasSubstr("which is not computed"));
}

TEST(PeftSettings, BlocksOfARotationMayBeCounted) {
  const auto read = ReadChanged("llama/oft", {{"r", 4}, {"oft_block_size", 0}});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->oft_block_size, 8);
  for (const int64_t blocks : {3, 32}) {
    EXPECT_THAT(RefusalOf("llama/oft", {{"r", blocks}, {"oft_block_size", 0}}),
                HasSubstr("has r " + std::to_string(blocks) + ", blocks of each layer"));
  }
  EXPECT_THAT(RefusalOf("llama/oft", {{"r", -4}, {"oft_block_size", 0}}),
              HasSubstr("has r -4, which is no whole number from 1 to 4096"));
}

TEST(PeftSettings, ABoneLearnsItsLaterName) {
  EXPECT_THAT(RefusalOf("llama/miss", {{"peft_type", "BONE"}}),
              HasSubstr("has peft_type \"BONE\", which is called MISS since peft 0.18; hint: "));
}

}  // namespace
}  // namespace weft
