#include "worker/engine/optim/updater.h"

#include "worker/engine/optim/gradient_norm.h"

namespace weft::engine {

Result<std::unique_ptr<Updater>> Updater::New(Context& context, const JobSpec& job,
                                              const ParameterSet& parameters, DType compute) {
  std::unique_ptr<Updater> updater(new Updater(job.train));
  WEFT_ASSIGN_OR_RETURN(updater->optimizer_,
                        NewOptimizer(context, job.optimizer, &parameters, compute));
  WEFT_ASSIGN_OR_RETURN(updater->average_,
                        WeightAverage::New(context, job.train.averaging, parameters));
  return updater;
}

Status Updater::Update(Context& context, const StepArgs& args) {
  const double clipping = ClipFactor(args.gradient_norm, train_.gradient_clip_norm);
  WEFT_RETURN_IF_ERROR(optimizer_->Update(context, {.learning_rate = args.learning_rate,
                                                    .gradient_scale = clipping / args.loss_scale,
                                                    .gradient_limit = train_.gradient_clip_value,
                                                    .update = args.update}));
  return average_ == nullptr ? OkStatus() : average_->Observe(context, args.update);
}

std::vector<AveragedParameter> Updater::Averages(int64_t updates) {
  if (updates == 0) return {};
  return average_ == nullptr ? optimizer_->Averages() : average_->Averages(updates);
}

std::vector<NamedTensor> Updater::StateTensors() const {
  std::vector<NamedTensor> tensors = optimizer_->StateTensors();
  if (average_ == nullptr) return tensors;
  for (NamedTensor& tensor : average_->StateTensors()) tensors.push_back(std::move(tensor));
  return tensors;
}

}  // namespace weft::engine
