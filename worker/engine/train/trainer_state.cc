#include "worker/engine/train/trainer.h"

#include <string>
#include <utility>

namespace weft::engine {
namespace {

// Says of the state of parameters that ranks share or stages have, whose names hold theirs between
// slashes, what part it is and who has it.
void MarkPlaces(const ParameterSet& parameters, std::vector<NamedTensor>& tensors) {
  if (!parameters.sharded() && !parameters.of_stage()) return;
  for (NamedTensor& tensor : tensors) {
    const std::string name = "/" + tensor.name + "/";
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (name.find("/" + parameter.name + "/") == std::string::npos) continue;
      if (parameters.of_stage()) {
        tensor.holder =
            parameters.Counts(i) ? NamedTensor::Holder::kStage : NamedTensor::Holder::kOtherStage;
      }
      if (parameter.shard.whole()) break;
      WEFT_CHECK(tensor.view.shape == parameter.shape, "state has the shape of its parameter");
      tensor.part = {.whole = parameter.logical_shape(), .shard = parameter.shard};
      break;
    }
  }
}

}  // namespace

std::vector<NamedTensor> Trainer::StateTensors() {
  std::vector<NamedTensor> tensors = parts_.model->parameters().NamedValues();
  for (NamedTensor& tensor : updater_->StateTensors()) tensors.push_back(std::move(tensor));
  if (const Fp8Scaling* fp8 = parts_.model->fp8()) {
    for (NamedTensor& tensor : fp8->StateTensors()) tensors.push_back(std::move(tensor));
  }
  MarkPlaces(parts_.model->parameters(), tensors);
  if (!noise_scale_) return tensors;
  for (NamedTensor& tensor : noise_scale_->StateTensors()) tensors.push_back(std::move(tensor));
  return tensors;
}

void Trainer::Restored(const TrainCounters& counters) {
  counters_ = counters;
  stale_ = Repack::kAll;
  // What the first steps do may be different, as their scales are in FP8.
  if (graphs_ != nullptr) graphs_->Clear();
  if (parts_.model->fp8() != nullptr) parts_.model->fp8()->Restored(counters.step);
}

}  // namespace weft::engine
