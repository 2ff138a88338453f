#include "worker/engine/optim/updater.h"

namespace weft::engine {

Result<std::unique_ptr<Updater>> Updater::New(Context& context, const JobSpec& job,
                                              const ParameterSet& parameters, DType compute,
                                              std::span<const ParameterPart> parts) {
  std::unique_ptr<Updater> updater(new Updater(job.train));
  WEFT_ASSIGN_OR_RETURN(updater->optimizer_,
                        NewOptimizer(context, job.optimizer, &parameters, compute, parts));
  return updater;
}

Status Updater::Update(Context& context, const StepArgs& args) {
  return optimizer_->Update(context, {.learning_rate = args.learning_rate,
                                      .gradient_limit = train_.gradient_clip_value,
                                      .update = args.update,
                                      .gate = args.gate,
                                      .keeps_second_moments = args.keeps_second_moments,
                                      .frozen = args.frozen,
                                      .restarted = args.restarted,
                                      .gradients = args.gradients,
                                      .beside = args.beside,
                                      .walk = args.walk});
}

Result<std::vector<AveragedParameter>> Updater::Averages(Context& context, int64_t updates) const {
  if (updates == 0) return std::vector<AveragedParameter>();
  return optimizer_->Averages(context);
}

}  // namespace weft::engine
