#pragma once

#include <cstdint>

#include "common/spec/model_spec.h"
#include "common/spec/train_spec.h"

namespace weft {

/// The steps from the first one on that train the nested network beside the whole one.
int64_t JointSteps(const TrainSpec& train);

/// The nested network as one of its own: the first blocks of `model`, and the first neurons of
/// their MLPs.
ModelSpec NestedModelOf(const ModelSpec& model, const NestedModelSpec& spec);

}  // namespace weft
