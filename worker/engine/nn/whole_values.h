#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// What this rank holds of a value (ParameterSet::held_value), as floats; of one that is quantised
/// its numbers: of a sharded one, which has been brought (ForEachUnit), all of them.
Result<std::vector<float>> HeldFloats(const ParameterSet& parameters, int64_t index);

/// All of a value that `tensor_ranks` have a part of each: they call this together. None: it is
/// whole here. A sharded one has been brought (ForEachUnit).
Result<std::vector<float>> WholeValue(const ParameterSet& parameters, int64_t index,
                                      Collective* tensor_ranks);

/// Replaces a value, or this rank's part of it, by that of the whole tensor. kInvalid where a
/// quantised one is not finite.
Status SetWholeValue(ParameterSet& parameters, int64_t index, std::vector<float> floats);

/// Calls fn(unit) for each unit of the parameters, while their values are in memory: all ranks that
/// shard values call this together, once there is a prefetcher. `fn` may set values of the
/// unit. kForward brings all of them, in the type that products read; kTrained those that are
/// trained, in the type in which they are held.
Status ForEachUnit(Context& context, const ParameterSet& parameters,
                   const std::function<Status(int64_t unit)>& fn, Pass pass = Pass::kForward);

}  // namespace weft::engine
