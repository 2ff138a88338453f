#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// Folders of Hugging Face's peft library with an adapter of AdaLoRA: its tensors have the ranks
// that were kept alone, and rank_pattern of adapter_config.json says which these are.

/// Which ranks the files have, by layer; of one that is not here: all.
using KeptRanks = std::map<std::string, std::vector<bool>>;

/// Reads the fields of AdaLoRA. kInvalid names a setting that is not computed.
Status ReadAdaLora(const Json& config, PeftSpec& spec);

/// What rank_pattern says for the layers of `model`, whose model.peft is that of the configuration.
/// kInvalid where it names another layer, or another number of ranks.
Result<KeptRanks> KeptRanksFrom(const Json& config, const ModelSpec& model);

/// The ranks whose number on the diagonal is not zero; all, where none is, as before the first
/// update.
Result<KeptRanks> KeptRanksOf(const ModelSpec& model, const WeightValues& values);

/// Adds the fields of AdaLoRA, after a training of `steps` steps (0: not known).
void AddAdaLora(const PeftSpec& spec, int64_t steps, const KeptRanks& kept, Json& config);

/// The shape in files of a tensor of an adapter: files have the kept ranks alone.
std::vector<uint64_t> KeptShape(const HuggingFaceTensor& tensor, const KeptRanks& kept);

/// Takes the values of a tensor that files have.
std::vector<float> TakeKept(const HuggingFaceTensor& tensor, const KeptRanks& kept,
                            std::span<const float> values);

/// The values of a tensor from what files have; zero where they have none.
void PlaceKept(const HuggingFaceTensor& tensor, const KeptRanks& kept,
               std::span<const float> of_file, std::span<float> values);

}  // namespace weft
