// The start of a phase whose growth is learned.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/memory_errors.h"
#include "common/model/growth_fit_memory.h"
#include "common/spec/deterministic_mesh.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/techniques/parallel/new_reducer.h"
#include "worker/trainer/attempt.h"
#include "worker/trainer/grown_state.h"

namespace weft::trainer {

Result<std::optional<LearnedStart>> Attempt::LearnGrowth() {
  if (!LearnsGrowth(spec_.start.growth)) return std::optional<LearnedStart>();
  std::string begun;
  if (first_rank()) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<engine::CheckpointInfo> checkpoints,
                          engine::ListCheckpoints(env_, spec_.run_dir));
    if (!checkpoints.empty()) begun = "begun";
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, group_->AllGather(begun));
  if (!all[0].empty()) return std::optional<LearnedStart>();
  Result<LearnedStart> learned = LearnOnWholeModel();
  if (learned.ok()) return std::optional(*std::move(learned));
  if (!IsMemoryError(learned.status())) return learned.status();
  return learned.status().WithContext("to learn a growth operator each rank has the whole model");
}

// Ranks that share a model between them all do the same.
Result<LearnedStart> Attempt::LearnOnWholeModel() {
  AttemptSpec fit = spec_;
  fit.job = JobOfGrowthFit(spec_.job);
  fit.plan = PlanOfGrowthFit(spec_.job, spec_.plan);
  fit.rank = engine::MeshLayout(spec_.plan.mesh).ReplicaOf(spec_.rank);
  fit.world_size = RankCount(fit.plan.mesh);
  TrainingData whole;
  engine::BatchSource* train = data_.train.get();
  if (spec_.plan.mesh.context > 1) {  // that has parts of sequences
    WEFT_ASSIGN_OR_RETURN(whole, OpenTrainingData(env_, fit, search_));
    train = whole.train.get();
  }
  engine::ModelOptions options = engine::ModelOptionsOf(fit.plan, fit.job.train);
  if (elastic_) options.elastic = &*elastic_;
  options.logits_source = added_network_.get();
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model,
                        engine::NewModel(context_, fit.job.model, options));
  WEFT_RETURN_IF_ERROR(model->parameters().Initialize(context_.seed));
  const DType gathered =
      GatheredMatrices(options.precision->products, IsMeshDeterministic(fit.job.train),
                       context_.stream.device.type == DeviceType::kCuda);
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<engine::BucketReducer> reducer,
                        engine::NewReducer(context_, fit.plan, groups_.Along(engine::kSequenceAxes),
                                           &model->parameters(), gathered));
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Trainer> trainer,
                        engine::Trainer::New(fit.job, fit.plan,
                                             {.context = &context_,
                                              .model = model.get(),
                                              .train = train,
                                              .reducer = reducer.get(),
                                              .rank = fit.rank,
                                              .graphs = false,
                                              .updates = false}));
  return LearnGrowthOfPhase(env_, fit, *model, *trainer, *group_);
}

}  // namespace weft::trainer
