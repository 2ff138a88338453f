#pragma once

#include <set>
#include <string>
#include <string_view>

#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// Norms that are trained whole, as peft has them (LN_TUNING; Zhao et al. 2023, arXiv 2312.11420):
// model.peft.method selective, with norms in modules_to_save.

/// What peft puts into the names of their weights and biases.
inline constexpr std::string_view kNormTensors = ".ln_tuning_layers";

bool IsNormConfig(const Json& config);

/// The norms of the network, in blocks and outside.
std::set<std::string> NormLayers(const ModelSpec& model);

/// Whether peft has an LN_TUNING that trains what the model does: norms, perhaps other layers, each
/// of them with all that it has.
bool TunesNorms(const ModelSpec& model);

/// What a configuration of LN_TUNING says whose file has tensors of these norms. kInvalid where
/// modules_to_save is no list of names.
Result<PeftSpec> NormsFromConfig(const Json& config, const ModelSpec& model,
                                 const std::set<std::string>& norms);

/// target_modules and modules_to_save of a model that TunesNorms. kInvalid where peft would untie a
/// table of tokens from the classifier.
Status AddNorms(const ModelSpec& model, Json& config);

}  // namespace weft
