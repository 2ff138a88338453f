#include "worker/engine/optim/updater.h"

namespace weft::engine {

Result<std::unique_ptr<Updater>> Updater::New(Context& context, const JobSpec& job,
                                              const ParameterSet& parameters, DType compute,
                                              std::span<const ParameterPart> parts) {
  std::unique_ptr<Updater> updater(new Updater(job.train));
  WEFT_ASSIGN_OR_RETURN(updater->optimizer_,
                        NewOptimizer(context, job.optimizer, &parameters, compute, parts));
  WEFT_ASSIGN_OR_RETURN(updater->average_,
                        WeightAverage::New(context, job.train.averaging, parameters, parts));
  return updater;
}

Status Updater::Update(Context& context, const StepArgs& args) {
  return optimizer_->Update(context, {.learning_rate = args.learning_rate,
                                      .gradient_limit = train_.gradient_clip_value,
                                      .update = args.update,
                                      .gate = args.gate,
                                      .gradients = args.gradients,
                                      .beside = args.beside,
                                      .walk = args.walk});
}

Status Updater::Made(Context& context, int64_t update) {
  optimizer_->Made();
  if (average_ == nullptr) return OkStatus();
  ProfileScope scope(context.profiler, "weight average");
  return average_->Observe(context, update);
}

Result<std::vector<AveragedParameter>> Updater::Averages(Context& context, int64_t updates) {
  if (updates == 0) return std::vector<AveragedParameter>();
  return average_ == nullptr ? optimizer_->Averages(context) : average_->Averages(context, updates);
}

std::vector<NamedTensor> Updater::StateTensors() const {
  std::vector<NamedTensor> tensors = optimizer_->StateTensors();
  if (average_ == nullptr) return tensors;
  for (NamedTensor& tensor : average_->StateTensors()) tensors.push_back(std::move(tensor));
  return tensors;
}

}  // namespace weft::engine
