#pragma once

#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// kInvalid where a setting of model.peft is of another method, or where two say the same.
Status CheckSettings(const PeftSpec& spec);

/// kInvalid where something that model.peft names is not in `model`, whose sizes are resolved.
Status CheckPeftNames(const ModelSpec& model);

}  // namespace weft
