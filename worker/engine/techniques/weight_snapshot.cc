#include "worker/engine/techniques/weight_snapshot.h"

#include <cstddef>

#include "kernels/elementwise/elementwise.h"

namespace weft::engine {

Status WeightSnapshot::Allocate(const TrainingParts& parts, const StateName& name) {
  context_ = parts.context;
  const ParameterSet& parameters = *parts.parameters;
  for (const UpdatedParameters& updated : parts.updated) {
    const std::vector<ParameterPart> all =
        updated.parts.empty() ? TrainedParts(parameters) : updated.parts;
    for (const ParameterPart& part : all) {
      copies_.Add(name.prefix + parameters[part.index].name + name.suffix, parameters, part);
      parts_.push_back(part);
    }
  }
  return copies_.Allocate(*parts.context);
}

Status WeightSnapshot::Copy(bool back) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const TensorView weight = parts_[i].value, copy = copies_[i];
    if (weight.shape.Elements() == 0) continue;
    WEFT_RETURN_IF_ERROR(
        kernels::Cast(context_->stream, {.x = back ? copy : weight, .y = back ? weight : copy}));
  }
  return OkStatus();
}

Status WeightSnapshot::Take() const {
  return Copy(false);
}

Status WeightSnapshot::Restore() const {
  return Copy(true);
}

}  // namespace weft::engine
