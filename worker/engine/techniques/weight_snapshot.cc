#include "worker/engine/techniques/weight_snapshot.h"

#include <cstddef>

#include "kernels/elementwise/elementwise.h"

namespace weft::engine {

Status WeightSnapshot::Allocate(const TrainingParts& parts, const StateName& name) {
  context_ = parts.context;
  trained_ = TrainedParts(*parts.parameters);
  for (const ParameterPart& part : trained_) {
    copies_.Add(name.prefix + (*parts.parameters)[part.index].name + name.suffix, *parts.parameters,
                part);
  }
  return copies_.Allocate(*parts.context);
}

Status WeightSnapshot::Take() const {
  for (size_t i = 0; i < trained_.size(); ++i) {
    WEFT_RETURN_IF_ERROR(
        kernels::Cast(context_->stream, {.x = trained_[i].value, .y = copies_[i]}));
  }
  return OkStatus();
}

Status WeightSnapshot::Restore() const {
  for (size_t i = 0; i < trained_.size(); ++i) {
    WEFT_RETURN_IF_ERROR(
        kernels::Cast(context_->stream, {.x = copies_[i], .y = trained_[i].value}));
  }
  return OkStatus();
}

}  // namespace weft::engine
