#pragma once

#include <string>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/formats/safetensors.h"
#include "common/json.h"
#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// Folders of Hugging Face's peft library with vectors that stand for tokens (PROMPT_TUNING,
// P_TUNING, PREFIX_TUNING): adapter_model.safetensors has one tensor, and those of modules that are
// trained whole.

/// The name of that tensor: [n, width], or of a prefix [n, layers * 2 * width of the keys], for
/// each layer keys and then values.
inline constexpr char kPromptTensorName[] = "prompt_embeddings";

/// Whether the method has such a folder,
bool HasPromptFolder(const PeftSpec& spec);
/// and whether an adapter_config.json is of one.
bool IsPromptConfig(const Json& config);

/// The parameters that are the tensor, or what makes it, in the order of the forward pass.
std::vector<ParameterInfo> PromptParameters(const ModelSpec& model);

/// Reads an adapter_config.json for the network `model`. Where a network has made the vectors, the
/// folder has the vectors alone: they are read as prompt or prefix. kInvalid names a setting that
/// is not computed, or that does not fit the network.
Result<PeftSpec> PromptFromConfig(const Json& config, const ModelSpec& model);

/// The adapter_config.json of `model.peft`, without what all methods have.
Json ConfigOfPrompt(const ModelSpec& model);

/// Fills the parameters of prompt, or of prefix without a projection, from that tensor of `file`,
/// at `path`. As ImportAdapter.
Status ImportPrompt(const SafetensorsFile& file, const std::string& path, const ModelSpec& model,
                    const WeightBuffer& buffer);

/// The tensor [n, columns], with what a trained network makes computed in float64.
struct PromptValues {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
};
Result<PromptValues> PromptOf(const ModelSpec& model, const WeightValues& values);

}  // namespace weft
