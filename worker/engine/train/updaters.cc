#include "worker/engine/train/updaters.h"

#include <utility>

#include "worker/engine/train/state_context.h"

namespace weft::engine {

Result<Updaters> Updaters::New(Context& context, Model& model, const JobSpec& job,
                               std::span<const ParameterPart> parts) {
  const ParameterSet& parameters = model.parameters();
  const auto make = [&](Context where, std::span<const ParameterPart> of) {
    const bool f32 = model.precision().products == DType::kF32;
    return Updater::New(where, job, parameters, f32 ? DType::kF32 : DType::kBF16, of);
  };
  Updaters made;
  made.context_ = &context;
  made.parameters_ = &parameters;
  if (!parameters.keeps_some_on_device()) {
    made.updated_ = {{parameters.offloaded(), {parts.begin(), parts.end()}}};
    WEFT_ASSIGN_OR_RETURN(made.main_, make(StateContextOf(context, parameters), parts));
    return made;
  }
  std::vector<ParameterPart> kept, others;
  for (const ParameterPart& part : TrainedParts(parameters)) {
    (parameters.on_host(part.index) ? others : kept).push_back(part);
  }
  if (others.empty()) {
    return InvalidError(
        "plan.device_updated_units leaves nothing for the host to update; hint: "
        "plan.offload_optimizer none");
  }
  WEFT_ASSIGN_OR_RETURN(made.main_, make(StateContextOf(context, parameters), others));
  made.updated_ = {{true, others}};
  if (kept.empty()) return made;
  WEFT_ASSIGN_OR_RETURN(made.kept_, make(context, kept));
  made.updated_.push_back({false, kept});
  return made;
}

void Updaters::OnApplied() {
  main_->OnApplied();
  if (kept_ != nullptr) kept_->OnApplied();
}

Result<std::vector<AveragedParameter>> Updaters::Averages(int64_t updates) const {
  Context state = StateContextOf(*context_, *parameters_);
  WEFT_ASSIGN_OR_RETURN(std::vector<AveragedParameter> all, main_->Averages(state, updates));
  if (kept_ == nullptr) return all;
  WEFT_ASSIGN_OR_RETURN(const std::vector<AveragedParameter> others,
                        kept_->Averages(*context_, updates));
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

std::vector<NamedTensor> Updaters::StateTensors() const {
  std::vector<NamedTensor> tensors;
  for (const Updater* updater : {kept_.get(), main_.get()}) {
    if (updater == nullptr) continue;
    for (NamedTensor& tensor : updater->StateTensors()) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace weft::engine
