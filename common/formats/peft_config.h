#pragma once

#include <set>
#include <string>

#include "common/formats/peft_adalora.h"
#include "common/formats/peft_base.h"
#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

inline constexpr char kPeftConfigName[] = "adapter_config.json";

/// The layers of blocks that have weights and the token embedding, or all that have an adapter of
/// `model.peft`, outside the blocks too.
std::set<std::string> AdaptableLayers(const ModelSpec& model, bool adapted);

/// What an adapter_config.json says of an adapter of `model` whose tensors are of these layers.
/// kInvalid names a setting that is not computed.
Result<PeftSpec> PeftFromConfig(const Json& config, const ModelSpec& model,
                                const std::set<std::string>& layers);

/// The adapter_config.json of `model.peft`, whose files have these ranks. kInvalid where peft has
/// no such adapter.
Result<Json> ConfigOfPeft(const ModelSpec& model, const AdapterOrigin& origin,
                          const KeptRanks& kept);

}  // namespace weft
