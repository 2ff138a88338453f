#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// The numbers that this rank holds of a value (ParameterSet::held_value), as floats, dequantised.
/// A sharded value that is quantised has been brought (ForEachUnit), and gives all of them.
Result<std::vector<float>> HeldFloats(const ParameterSet& parameters, int64_t index);

/// All of a value that `tensor_ranks` have a part of each: they call this together. None: it is
/// whole here. A sharded one has been brought (ForEachUnit).
Result<std::vector<float>> WholeValue(const ParameterSet& parameters, int64_t index,
                                      Collective* tensor_ranks);

/// All numbers of a parameter, where `tensor_ranks` have a part of them each, this one `own`: they
/// call this together. None: it is whole here.
Result<std::vector<float>> WholeOfParts(const Parameter& parameter, std::vector<float> own,
                                        Collective* tensor_ranks);

/// The numbers that this tensor-parallel rank has of a parameter.
template <class T>
std::vector<T> PartOfWhole(const Parameter& parameter, std::vector<T> whole) {
  if (parameter.shard.whole()) return whole;
  std::vector<T> part(static_cast<size_t>(parameter.shape.Elements()));
  parameter.shard.ForEachRun(parameter.shape, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(whole.begin() + from, count, part.begin() + to);
  });
  return part;
}

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
