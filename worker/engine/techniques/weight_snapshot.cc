#include "worker/engine/techniques/weight_snapshot.h"

#include <cstddef>
#include <utility>

#include "kernels/elementwise/elementwise.h"

namespace weft::engine {

Status WeightSnapshot::Allocate(const TrainingParts& parts, const StateName& name) {
  const ParameterSet& parameters = *parts.parameters;
  for (const UpdatedParameters& updated : parts.updated) {
    Context context = parts.ContextOf(updated);
    Place& place = places_.emplace_back(
        Place{context.stream, updated.parts.empty() ? TrainedParts(parameters) : updated.parts});
    for (const ParameterPart& part : place.parts) {
      place.copies.Add(name.prefix + parameters[part.index].name + name.suffix, parameters, part);
    }
    WEFT_RETURN_IF_ERROR(place.copies.Allocate(context));
  }
  return OkStatus();
}

Status WeightSnapshot::Copy(bool back) const {
  for (const Place& place : places_) {
    for (size_t i = 0; i < place.parts.size(); ++i) {
      const TensorView weight = place.parts[i].value, copy = place.copies[i];
      if (weight.shape.Elements() == 0) continue;
      WEFT_RETURN_IF_ERROR(
          kernels::Cast(place.stream, {.x = back ? copy : weight, .y = back ? weight : copy}));
    }
  }
  return OkStatus();
}

Status WeightSnapshot::Take() const {
  return Copy(false);
}

Status WeightSnapshot::Restore() const {
  return Copy(true);
}

std::vector<NamedTensor> WeightSnapshot::Named() const {
  std::vector<NamedTensor> tensors;
  for (const Place& place : places_) {
    for (NamedTensor& tensor : place.copies.Named()) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace weft::engine
