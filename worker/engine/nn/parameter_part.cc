#include "worker/engine/nn/parameter_part.h"

namespace weft::engine {

ParameterPart PartOf(const ParameterSet& parameters, int64_t index, int64_t first, int64_t count,
                     float* gradient) {
  const ParameterSet::HeldValue held = parameters.held_value(index);
  const TensorView& all = held.view;
  auto* begin = static_cast<char*>(all.data);
  if (begin != nullptr && count > 0) {
    begin += static_cast<size_t>(first - held.first) * DTypeSize(all.dtype);
  }
  return {.index = index,
          .whole = false,
          .first = first,
          .value = {begin, all.dtype, {count}, all.device},
          .gradient = {gradient, DType::kF32, {count}, all.device}};
}

ParameterPart WholePart(const ParameterSet& parameters, int64_t index) {
  return {.index = index, .value = parameters.value(index), .gradient = parameters.gradient(index)};
}

std::vector<int64_t> TrainedParameters(const ParameterSet& parameters) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const bool has_gradient = parameters.file() != nullptr || parameters.gradient(i);
    if (parameters[i].updated() && has_gradient) indices.push_back(i);
  }
  return indices;
}

std::vector<ParameterPart> TrainedParts(const ParameterSet& parameters) {
  std::vector<ParameterPart> parts;
  for (int64_t i : TrainedParameters(parameters)) parts.push_back(WholePart(parameters, i));
  return parts;
}

}  // namespace weft::engine
