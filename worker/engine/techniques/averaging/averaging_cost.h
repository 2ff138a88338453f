#pragma once

#include <cstdint>
#include <string>

#include "common/spec/train_spec.h"

namespace weft {

/// Tensors of state for each parameter.
int64_t AverageSlots(const AveragingSpec& spec);

/// What the names of the tensors of `slot` begin with.
std::string AverageSlotPrefix(const AveragingSpec& spec, int64_t slot);

}  // namespace weft
