#pragma once

#include <cstdint>

#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// kInvalid where a block has fewer units than there are ranks. Its units are the neurons of the
/// MLP, and the heads of keys and values, each with the query heads that share it.
Status CheckSubNetworkUnits(const ModelSpec& model, int64_t ranks);

}  // namespace weft
