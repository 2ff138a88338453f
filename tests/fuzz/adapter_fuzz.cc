// A folder of peft: the family of its network and a new line, adapter_config.json, a zero byte, and
// adapter_model.safetensors. What is read is refused for writing or written, and then read as the
// same adapter.
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "tests/fuzz/input.h"

namespace {

using namespace weft;

/// The networks of tests/parity/testdata.
ModelSpec BaseOf(std::string_view family) {
  ModelSpec model;
  model.family = family == "llama" ? "llama" : "gpt2";
  model.layers = 2;
  model.width = 32;
  model.heads = family == "llama" ? 4 : 2;
  model.mlp_width = family == "llama" ? 72 : 96;
  model.vocab_size = 67;
  model.context = 24;
  if (family != "llama") return model;
  model.kv_heads = 2;
  model.untied_classifier = true;
  return model;
}

using Values = std::map<std::string, std::vector<float>>;

/// Reads a folder into `values`. False where it is refused.
bool Read(Env& env, const std::string& folder, ModelSpec& model, Values& values) {
  const Result<PeftSpec> peft = ReadAdapterConfig(env, folder, model);
  if (!peft.ok()) return false;
  model.peft = *peft;
  const auto buffer = [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
    size_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    std::vector<float>& own = values[tensor.parameter];
    own.resize(count);
    return std::span(own);
  };
  return ImportAdapter(env, folder, model, buffer).ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view weights = fuzz::Text(data, size);
  const ModelSpec base = BaseOf(fuzz::TakeUntil(weights, '\n'));
  const std::string_view config = fuzz::TakeUntil(weights, '\0');
  FaultEnv env;
  WEFT_FUZZ_EXPECT(env.CreateDirs("/adapter").ok());
  WEFT_FUZZ_EXPECT(WriteFileAtomic(env, "/adapter/adapter_config.json", config).ok());
  WEFT_FUZZ_EXPECT(WriteFileAtomic(env, "/adapter/adapter_model.safetensors", weights).ok());
  ModelSpec model = base, again = base;
  Values values, same;
  if (!Read(env, "/adapter", model, values)) return 0;
  const auto value_of = [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
    return std::span<const float>(values.at(tensor.parameter));
  };
  if (!ExportAdapter(env, "/again", model, {}, value_of).ok()) return 0;
  WEFT_FUZZ_EXPECT(Read(env, "/again", again, same));
  // Files of AdaLoRA leave out ranks that are zero.
  if (model.peft.method == "adalora") return 0;
  for (const auto& [parameter, numbers] : same) WEFT_FUZZ_EXPECT(values.at(parameter) == numbers);
  return 0;
}
