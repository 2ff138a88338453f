#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// The part of a trained parameter that this rank updates: all of it or, with a sharded optimizer
/// (techniques/parallel/sharded_data_parallel.h), a range of its elements, which may be empty.
struct ParameterPart {
  int64_t index = 0;    ///< Of the parameter.
  bool whole = true;    ///< Then the views have the parameter's shape.
  int64_t first = 0;    ///< Element at which it begins.
  TensorView value;     ///< [count]
  TensorView gradient;  ///< f32, likewise; summed over the ranks once their reduction is done.

  int64_t count() const { return value.shape.Elements(); }
};

/// Elements [first, first + count) of a parameter, with their gradients at `gradient`; this rank
/// holds their values.
ParameterPart PartOf(const ParameterSet& parameters, int64_t index, int64_t first, int64_t count,
                     float* gradient);

/// All of parameter `index`, which has a gradient.
ParameterPart WholePart(const ParameterSet& parameters, int64_t index);

/// Parameters that updates change: the trained ones, with sources in place of the parameters
/// derived from them.
std::vector<int64_t> TrainedParameters(const ParameterSet& parameters);

/// All of each of them.
std::vector<ParameterPart> TrainedParts(const ParameterSet& parameters);

}  // namespace weft::engine
