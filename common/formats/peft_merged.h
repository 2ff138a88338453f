#pragma once

#include <set>
#include <string>

#include "common/json.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

// What an adapter_config.json says of the methods that compute another weight: LOHA, LOKR, OFT and
// VERA.

/// Whether `method`, of model.peft, is one of these.
bool IsMergedMethod(const std::string& method);

/// Reads the fields of spec.method, one of these, of an adapter whose tensors are of these layers.
/// kInvalid names a setting that is not computed.
Status ReadMerged(const Json& config, const ModelSpec& model, const std::set<std::string>& layers,
                  PeftSpec& spec);

/// Adds the fields of model.peft.method, one of these. kInvalid where peft has no such adapter.
Status AddMerged(const ModelSpec& model, Json& config);

}  // namespace weft
