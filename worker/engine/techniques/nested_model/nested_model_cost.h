#pragma once

#include <cstdint>

#include "common/spec/model_spec.h"
#include "common/spec/train_spec.h"
#include "common/status.h"

namespace weft {

/// The steps from the first one on that train the nested network with the whole one.
int64_t JointSteps(const TrainSpec& train);

/// kInvalid where `model`, whose sizes are known, has no such smaller network within it.
Status CheckNestedSizes(const ModelSpec& model, const NestedModelSpec& spec);

/// The nested network as one of its own: the first blocks of `model`, and the first neurons of
/// their MLPs.
ModelSpec NestedModelOf(const ModelSpec& model, const NestedModelSpec& spec);

}  // namespace weft
