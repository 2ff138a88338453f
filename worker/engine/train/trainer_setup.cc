#include "worker/engine/train/trainer.h"

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/log.h"
#include "common/model/state_tensors.h"
#include "common/model/technique_cost.h"
#include "common/spec/context_parallel.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/local_steps.h"
#include "common/spec/micro_batch_order.h"
#include "common/spec/phases.h"
#include "common/spec/pipeline_parallel.h"
#include "common/spec/planned_job.h"
#include "common/spec/shard_ranks.h"
#include "common/spec/tensor_parallel.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/optim/schedule.h"
#include "worker/engine/techniques/registry.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {
namespace {

Status Validate(const JobSpec& job, const Plan& plan, const TrainerParts& parts) {
  const int64_t context_ranks = parts.sequences != nullptr ? parts.sequences->degree() : 1;
  const int64_t summing = parts.reducer != nullptr ? parts.reducer->world_size() : 1;
  const int64_t replicas = summing * (parts.outer != nullptr ? parts.outer->world_size() : 1);
  const int64_t ranks = replicas / context_ranks;  // data-parallel
  const int64_t tensor = parts.tensor != nullptr ? parts.tensor->degree() : 1;
  const int64_t experts = parts.experts != nullptr ? parts.experts->degree() : 1;
  const int64_t pipeline = parts.pipeline != nullptr ? parts.pipeline->degree() : 1;
  if (RankCount(plan.mesh) != replicas * tensor * pipeline ||
      plan.mesh.data * plan.mesh.expert != ranks || plan.mesh.expert != experts ||
      plan.mesh.context != context_ranks || plan.mesh.pipeline != pipeline) {
    return InvalidError(
        "a plan for " + std::to_string(RankCount(plan.mesh)) + " ranks, " +
        std::to_string(plan.mesh.data * plan.mesh.expert) +
        " of them data-parallel, cannot run on " + std::to_string(ranks) + " data-parallel" +
        (experts > 1 ? " (" + std::to_string(experts) + " expert-parallel)" : "") +
        (context_ranks > 1 ? " x " + std::to_string(context_ranks) + " context-parallel" : "") +
        (tensor > 1 ? " x " + std::to_string(tensor) + " tensor-parallel" : "") +
        (pipeline > 1 ? " x " + std::to_string(pipeline) + " pipeline-parallel" : "") + " ranks");
  }
  WEFT_RETURN_IF_ERROR(CheckPlanCompatibility(job, plan));
  WEFT_CHECK(!IsMeshDeterministic(job.train) || plan.micro_batch == LogicalMicroBatch(job.train),
             "train.deterministic mesh has one micro-batch on every mesh (CheckDeterministicMesh)");
  const bool local = MakesLocalSteps(job.train);
  if (local ? summing != context_ranks : parts.outer != nullptr) {
    return InvalidError(
        (TimesRounds(job.train) ? ShownRoundSeconds(job.train)
                                : "train.local_steps " + std::to_string(job.train.local_steps)) +
        ", but the ranks are to meet in " + (local ? "every step" : "outer steps alone"));
  }
  const int64_t rows = parts.tensor != nullptr ? parts.tensor->rows() : 1;
  if (plan.tensor_rows != rows) {
    return InvalidError("a plan with tensor_rows " + std::to_string(plan.tensor_rows) +
                        " cannot run on tensor-parallel ranks with " + std::to_string(rows));
  }
  WEFT_RETURN_IF_ERROR(
      CheckTensorParallel(job, tensor, parts.tensor != nullptr && parts.tensor->sequence(), rows));
  if (parts.sequences != nullptr) {
    WEFT_RETURN_IF_ERROR(CheckContextParallel(job, context_ranks, parts.sequences->method()));
  }
  WEFT_RETURN_IF_ERROR(CheckPipelineParallel(job, pipeline, plan.pipeline_schedule,
                                             plan.pipeline_chunks, plan.accumulation_steps));
  if (plan.offload_optimizer != "none" &&
      (parts.context->host == nullptr || parts.reducer == nullptr ||
       !parts.model->parameters().offloaded())) {
    return InvalidError("plan.offload_optimizer " + plan.offload_optimizer +
                        ", but the model is on the device");
  }
  if (plan.offload_activations != "none" && parts.context->host == nullptr) {
    return InvalidError("plan.offload_activations " + plan.offload_activations +
                        ", but there is no host memory pool");
  }
  const ParameterSet& parameters = parts.model->parameters();
  const bool come_from_host =
      parameters.streamed() || (parameters.offloaded() && parameters.values_sharded());
  if (come_from_host != (plan.offload_parameters != "none" && parameters.prefetcher() != nullptr)) {
    return InvalidError("plan.offload_parameters " + plan.offload_parameters +
                        ", but nothing brings parameters to the device so");
  }
  WEFT_CHECK(plan.resident_units.empty() || (parameters.streamed() && parameters.file() == nullptr),
             "resident units are of weights that come from the host's memory (CheckOffload)");
  const bool other_parts = parts.pipeline != nullptr || parts.experts != nullptr;
  if (parts.model->parameters().of_stage() != other_parts ||
      parts.model->parameters().sharded() != (parts.tensor != nullptr)) {
    return InvalidError("the model was made for another mesh than the trainer");
  }
  const int64_t share = plan.micro_batch * plan.accumulation_steps;
  // Ranks that come and go all make steps of the size that was planned for the first ones.
  const bool fits = parts.round_members.members.empty() ? share * ranks == job.train.global_batch
                                                        : job.train.global_batch % share == 0;
  if (!fits) {
    return InvalidError("micro_batch " + std::to_string(plan.micro_batch) +
                        " x accumulation_steps " + std::to_string(plan.accumulation_steps) + " x " +
                        std::to_string(ranks) + " ranks is not train.global_batch " +
                        std::to_string(job.train.global_batch));
  }
  WEFT_CHECK(plan.micro_batch % JointParts(job) == 0,
             "the planner divides micro-batches evenly among the jobs that are trained together");
  const int64_t unit = BatchSchedule(job.train).unit();
  if (unit % (plan.micro_batch * ranks) != 0) {
    return InvalidError("train.batch_warmup_start " + std::to_string(unit) +
                        " is not a multiple of micro_batch " + std::to_string(plan.micro_batch) +
                        " x " + std::to_string(ranks) + " ranks");
  }
  if (parts.rank < 0 || parts.rank >= ranks) {
    return InvalidError("rank " + std::to_string(parts.rank) + " of " + std::to_string(ranks));
  }
  const bool shares = replicas > 1 && parts.reducer != nullptr && !parts.reducer->parts().empty();
  const bool updates = parameters.GradientCount() > 0;  // not where all of a stage is frozen
  if (shares != (replicas > 1 && plan.zero_stage > 0 && updates)) {
    return InvalidError("plan.zero_stage " + std::to_string(plan.zero_stage) + ", but the ranks " +
                        (shares ? "share" : "do not share") + " the updates");
  }
  const PrecisionRecipe& precision = parts.model->precision();
  if (&precision != ModelOptionsOf(plan).precision) {
    return InvalidError("the model was made for precision " + std::string(precision.name) +
                        ", the plan's precision is " + plan.precision);
  }
  return OkStatus();
}

/// Each of several jobs that are trained together has its own.
void SetPeakRates(const JobSpec& job, ParameterSet& parameters) {
  const std::vector<JobSpec> jobs = JointJobs(job);
  for (int64_t i = 0; i < parameters.size() && !jobs.empty(); ++i) {
    const JobSpec& own = jobs[static_cast<size_t>(parameters[i].row_part)];
    parameters.SetPeakRate(i, PeakLearningRate(own) / PeakLearningRate(job));
  }
}

std::vector<std::unique_ptr<Technique>> TechniquesOf(const TrainerParts& parts,
                                                     const JobSpec& job) {
  const std::optional<PhaseGrowth> growth = RewarmedGrowthOf(job);
  return TrainingTechniques(
      {.model = parts.model->spec(), .train = job.train, .growth = growth ? &*growth : nullptr});
}

JobSpec WithoutUpdateState(JobSpec job) {
  job.optimizer = StatelessOptimizer();
  return job;
}

}  // namespace

ModelOptions ModelOptionsOf(const Plan& plan, const TrainSpec& train) {
  const bool shards_values = plan.zero_stage > 2 && ShardRanks(plan) > 1;
  return {.precision = &PrecisionOf(plan.precision),
          .with_gradients = true,
          .block_memory_policy = plan.block_memory_policy,
          .recompute_segment = plan.recompute_segment,
          .recompute_schedule = plan.recompute_schedule,
          .activation_bits = plan.activation_bits,
          .train = train,
          .update_ranks = ShardRanks(plan),
          .place_gradients = plan.zero_stage > 1 && ShardRanks(plan) > 1,
          .shard_values = shards_values,
          .offload = plan.offload_optimizer != "none",
          .device_updated_units = plan.device_updated_units,
          .stream_parameters = plan.offload_parameters != "none" && !shards_values,
          .parameters_in_file = plan.offload_parameters == "nvme",
          .offload_activations = plan.offload_activations != "none"};
}

Trainer::Trainer(const JobSpec& job, const Plan& plan, const TrainerParts& parts)
    : job_(job),
      plan_(plan),
      parts_(parts),
      ranks_(parts),
      techniques_(parts.model->techniques(), TechniquesOf(parts, job_)),
      weights_(parts.context, parts.model, &techniques_),
      sequences_(parts, &ranks_, &techniques_,
                 {.schedule = BatchSchedule(job_.train),
                  .micro_batch = plan_.micro_batch,
                  .eval_sequences = job_.train.eval_sequences}),
      passes_(parts, &techniques_, &clock_, &sequences_, &part_losses_),
      launcher_(parts.context, &clock_, &ranks_, parts.reducer) {
  if (parts.model->precision().loss_scaling) {
    counters_.loss_scale = FirstLossScale(job.train.loss_scaling);
  }
}

Result<std::unique_ptr<Trainer>> Trainer::New(const JobSpec& job, const Plan& plan,
                                              const TrainerParts& parts) {
  WEFT_RETURN_IF_ERROR(Validate(job, plan, parts));
  kernels::cpu::SetThreads(static_cast<int>(plan.threads_per_rank));
  parts.context->seed = static_cast<uint64_t>(job.train.seed);
  std::unique_ptr<Trainer> trainer(new Trainer(job, plan, parts));
  SetPeakRates(job, parts.model->parameters());
  WEFT_ASSIGN_OR_RETURN(
      trainer->updaters_,
      Updaters::New(*parts.context, *parts.model, parts.updates ? job : WithoutUpdateState(job),
                    trainer->ranks_.updated_parts()));
  Context state = trainer->StateContext();
  if (MakesLocalSteps(job.train)) {
    WEFT_ASSIGN_OR_RETURN(
        trainer->rounds_,
        LocalRounds::New(state, job.train, parts.model->parameters(), parts.outer, parts.rank));
  }
  if (TimesRounds(job.train)) {
    RoundMembers members = parts.round_members;
    if (members.members.empty()) {
      members.number = parts.rank;
      members.members.resize(static_cast<size_t>(trainer->ranks_.data_ranks()));
      std::iota(members.members.begin(), members.members.end(), 0);
    }
    trainer->timed_ = std::make_unique<TimedRound>(
        TimedRound::Options{.members = std::move(members),
                            .global_batch = job.train.global_batch,
                            .share = plan.micro_batch * plan.accumulation_steps,
                            .steps = job.train.steps,
                            .seconds = job.train.local_round_seconds});
  }
  Context& context = *parts.context;
  WEFT_ASSIGN_OR_RETURN(trainer->totals_, StepTotals::New(parts, &trainer->ranks_));
  if (IsMeshDeterministic(job.train)) WEFT_RETURN_IF_ERROR(trainer->SumByMicroBatch());
  WEFT_ASSIGN_OR_RETURN(trainer->part_losses_, PartLosses::New(context, JointParts(job)));
  ParameterSet& parameters = parts.model->parameters();
  if (parameters.offloaded()) {
    WEFT_ASSIGN_OR_RETURN(
        trainer->offloaded_,
        OffloadedUpdates::New({.context = &context,
                               .parameters = &parameters,
                               .reducer = parts.reducer,
                               .ranks = &trainer->ranks_,
                               .updaters = &trainer->updaters_,
                               .weights = &trainer->weights_,
                               .clock = &trainer->clock_},
                              {.delays = plan.delayed_update,
                               .overlaps = !trainer->techniques_.ReadsUpdatedParameters() &&
                                           !trainer->techniques_.NeedsWholeUpdates(),
                               .steps = job.train.steps}));
  }
  if (job.train.replay_every_steps > 0) {
    trainer->replay_ = std::make_unique<ReplayCheck>(parts);
  }
  WEFT_RETURN_IF_ERROR(trainer->StartTechniques());
  WEFT_ASSIGN_OR_RETURN(trainer->loader_,
                        BatchLoader::New(context, parts.train,
                                         {.schedule = BatchSchedule(job.train),
                                          .micro_batch = plan.micro_batch,
                                          .rank = parts.rank,
                                          .ranks = trainer->ranks_.data_ranks(),
                                          .parts = JointParts(job),
                                          .taking_turns = RanksTakingTurns(job.train, plan)}));
  if (trainer->on_gpu()) {
    WEFT_ASSIGN_OR_RETURN(trainer->numbers_, ReadbackOf<StepNumbers>::New(context));
    if (const std::string_view why = trainer->WhyNoGraphs(); why.empty()) {
      if (parts.graphs) trainer->launcher_.UseGraphs();
    } else {
      WEFT_LOG_INFO << "training steps are enqueued one operation after the other: " << why;
    }
  }
  return trainer;
}

Status Trainer::SumByMicroBatch() {
  GradientReducer* const reducer = parts_.reducer;
  const bool places = reducer != nullptr && reducer->places_gradients();
  const int64_t micro_batches = plan_.accumulation_steps;
  WEFT_ASSIGN_OR_RETURN(
      micro_batches_,
      MicroBatchSums::New(*parts_.context, &parts_.model->parameters(), micro_batches, !places));
  if (places) WEFT_RETURN_IF_ERROR(reducer->SumInTree(micro_batches));
  passes_.SumByMicroBatch(micro_batches_.get());
  totals_.SumExactly(micro_batches_.get());
  return OkStatus();
}

Status Trainer::StartTechniques() {
  ParameterSet& parameters = parts_.model->parameters();
  const TrainingParts training = {
      .job = &job_,
      .plan = &plan_,
      .context = parts_.context,
      .parameters = &parameters,
      .updated = updaters_.updated(),
      .shards_updates = !ranks_.updated_parts().empty(),
      .data_ranks = ranks_.data_ranks(),
      .data_rank = parts_.rank,
      .train_sequences = parts_.train->Sequences(),
      .validation_sequences = sequences_.evaluated_sequences(),
      .sum_scalars =
          [this](std::span<double> values) {
            PhaseSeconds seconds;
            Status summed = ranks_.SumScalars(values, seconds);
            waited_for_techniques_ += seconds.communication_exposed;
            return summed;
          },
      .take_maxima =
          [this](const TensorView& magnitudes) {
            return ranks_.TakeMaxima(magnitudes, waited_for_techniques_);
          },
      .sum_over_replica =
          [this](std::span<double> values) {
            PhaseSeconds seconds;
            Status summed = ranks_.SumOverReplica(values, seconds);
            waited_for_techniques_ += seconds.communication_exposed;
            return summed;
          },
      .sum_over_parts =
          [this](std::span<double> values) {
            PhaseSeconds seconds;
            Status summed = ranks_.SumOverParts(values, seconds);
            waited_for_techniques_ += seconds.communication_exposed;
            return summed;
          },
      .gather_parts =
          [this](int64_t parameter, std::span<const float> own) {
            PhaseSeconds seconds;
            Result<std::vector<float>> whole = ranks_.GatherParts(parameter, own, seconds);
            waited_for_techniques_ += seconds.communication_exposed;
            return whole;
          },
      .compute_gradients =
          [this](double scale) {
            StepReport report = NewReport();
            report.loss_scale = scale;
            return ComputeGradients(report);
          },
      .score_sequences = [this](DataPart part) { return sequences_.Score(part); },
      .optimizer_state = [this] { return updaters_.StateTensors(); },
      .outer_value = [this](int64_t parameter) { return rounds_->value(parameter); },
      .values_changed = [this] { weights_.Changed(Repack::kTrained); },
      .begin_anew = [this] { return BeginAnew(); }};
  return techniques_.OnTraining(training);
}

std::string_view Trainer::WhyNoGraphs() const {
  if (parts_.context->host != nullptr) return "the host copies what is offloaded during the pass";
  if (parts_.reducer != nullptr && parts_.reducer->recorders().empty()) {
    return "collectives of the backward pass cannot be recorded";
  }
  if (parts_.sequences != nullptr) return "the ranks are context-parallel";
  if (parts_.tensor != nullptr) return "the ranks are tensor-parallel";
  if (parts_.pipeline != nullptr) return "the ranks are pipeline stages";
  if (job_.model.experts > 0) return "the host reads how many tokens each expert gets";
  if (!updaters_.repeats()) return "the optimizer has numbers of its own";
  return techniques_.WhyNoGraphs();
}

}  // namespace weft::engine
