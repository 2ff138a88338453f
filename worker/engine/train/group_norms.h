#pragma once

#include <string_view>
#include <vector>

#include "common/spec/group_norm.h"
#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// What a parameter belongs to, by its name in the checkpoint: "embedding", "attention", "mlp",
/// "norms" or "head".
std::string_view GroupOfParameter(std::string_view name);

/// Norms of gradients (summed over the ranks, without their loss scale, not clipped) and values, by
/// group in the order above, groups without parameters left out. Frozen parameters count with their
/// values only. Reads every number once; the result does not depend on the number of threads.
Result<std::vector<GroupNorm>> MeasureGroups(Context& context, const ParameterSet& parameters,
                                             double loss_scale);

}  // namespace weft::engine
