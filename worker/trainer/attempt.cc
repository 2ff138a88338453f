#include "worker/trainer/attempt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <thread>
#include <utility>

#include "common/failpoint.h"
#include "common/formats/tokenizer_files.h"
#include "common/formats/usage_files.h"
#include "common/log.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/memory_text.h"
#include "common/model/model_sizes.h"
#include "common/model/pipeline_shape.h"
#include "common/spec/local_steps.h"
#include "common/spec/mixture_of_experts.h"
#include "common/spec/planned_job.h"
#include "common/spec/spec_json.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cuda/transfer.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/techniques/parallel/new_reducer.h"
#include "worker/engine/train/guard.h"
#include "worker/trainer/class_names.h"
#include "worker/trainer/run_folder.h"

namespace weft::trainer {
namespace {

constexpr engine::AxisSet kTensorAxis = {engine::MeshAxis::kTensor};
constexpr engine::AxisSet kPipelineAxis = {engine::MeshAxis::kPipeline};
constexpr engine::AxisSet kContextAxis = {engine::MeshAxis::kContext};
constexpr engine::AxisSet kExpertAxis = {engine::MeshAxis::kExpert};

using std::chrono::steady_clock;

/// Sizes that the job leaves open.
ModelSpec ResolveModel(const JobSpec& job, const TrainingData& data) {
  ModelSpec model = job.model;
  if (model.vocab_size == 0) model.vocab_size = PaddedVocabulary(data.vocab_size);
  if (model.classes == 0) model.classes = static_cast<int64_t>(data.classes.size());
  return model;
}

std::optional<double> IfFinite(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

/// How long a rank waits for the others: as long as ever for each step that they may be behind.
std::chrono::milliseconds PatienceOf(const TrainSpec& train, std::chrono::milliseconds of_step) {
  constexpr std::chrono::milliseconds kMost = std::chrono::hours(24);
  return train.local_steps < kMost / of_step ? train.local_steps * of_step : kMost;
}

/// " accuracy 91.3 %", where there is one.
std::string AccuracyText(std::optional<double> accuracy) {
  if (!accuracy) return "";
  const auto permille = std::llround(*accuracy * 1000);
  return " accuracy " + std::to_string(permille / 10) + "." + std::to_string(permille % 10) + " %";
}

/// " <name> <value>" of each.
std::string MetricsText(const std::map<std::string, double>& metrics) {
  std::ostringstream text;
  for (const auto& [name, value] : metrics) text << " " << name << " " << value;
  return text.str();
}

}  // namespace

Attempt::Attempt(Env& env, const AttemptSpec& spec, TrainingData data, Reporter& reporter,
                 engine::Store& store)
    : env_(env),
      spec_(spec),
      data_(std::move(data)),
      reporter_(reporter),
      store_(store),
      begin_(steady_clock::now()) {
  spec_.job.model = ResolveModel(spec.job, data_);
}

Attempt::~Attempt() {
  // The peers need not wait for what will never come, nor this device for them.
  if (group_ != nullptr && !ended_) group_->Abort();
  if (pipeline_ != nullptr && !ended_) pipeline_->Abort();
}

Status Attempt::Prepare() {
  WEFT_RETURN_IF_ERROR(ValidateKnownSizes(spec_.job));
  WEFT_RETURN_IF_ERROR(CheckPlanCompatibility(spec_.job, spec_.plan));
  if (spec_.job.model.vocab_size < data_.vocab_size) {
    return InvalidError("the tokenizer has " + std::to_string(data_.vocab_size) +
                        " entries, the model's vocabulary only " +
                        std::to_string(spec_.job.model.vocab_size) +
                        "; hint: set model.vocab_size to 0 or use the model's own tokenizer");
  }
  kernels::cpu::SetThreads(static_cast<int>(spec_.plan.threads_per_rank));
  WEFT_RETURN_IF_ERROR(OpenDevice());
  WEFT_RETURN_IF_ERROR(CheckFolder());
  if (saving_rank() < saving_ranks()) {
    engine::CheckpointWriterOptions options;
    options.env = &env_;
    options.run_dir = spec_.run_dir;
    options.epoch = spec_.epoch;
    options.keep_last = spec_.job.checkpoint.keep_last;
    if (saving_ranks() > 1) options.peers.emplace(&store_, saving_rank(), saving_ranks());
    if (first_rank()) options.report = [this](const auto& p) { ReportCheckpoint(p); };
    WEFT_ASSIGN_OR_RETURN(checkpoints_, engine::CheckpointWriter::Open(std::move(options)));
  }
  WEFT_RETURN_IF_ERROR(Join());
  WEFT_RETURN_IF_ERROR(AgreeOnData());
  WEFT_RETURN_IF_ERROR(BuildModel());
  WEFT_ASSIGN_OR_RETURN(StartPoint start,
                        PrepareState(env_, spec_, data_.fingerprint, *model_, *trainer_, *group_));
  for (const std::string& warning : start.warnings) Event("warning", warning);
  if (const std::string warning = RouterWarning(spec_.job.model);
      first_rank() && !warning.empty()) {
    Event("warning", warning);
  }
  for (const std::string& note : start.notes) Event("info", note);
  first_step_ = start.counters.step;
  first_tokens_ = start.counters.tokens;
  WEFT_RETURN_IF_ERROR(OpenOutputs(start));
  WEFT_ASSIGN_OR_RETURN(parameters_, CountParameters());
  const double seconds = std::chrono::duration<double>(steady_clock::now() - begin_).count();
  reporter_.Report(StartedMessage{first_step_, start.checkpoint_path, parameters_, seconds});
  return OkStatus();
}

Status Attempt::CheckFolder() {
  if (saving_rank() >= saving_ranks()) return OkStatus();
  return CheckRunFolder(env_, spec_.run_dir, spec_.rank);
}

Status Attempt::OpenDevice() {
  engine::ComputeDevice::Options options;
  options.limit_bytes = spec_.job.resources.memory_per_rank_bytes;
  if (spec_.plan.device_memory_bytes > 0) options.limit_bytes = spec_.plan.device_memory_bytes;
  options.host = engine::HostTierOf(spec_.plan, spec_.job.resources.memory_per_rank_bytes);
  if (spec_.plan.device == "cuda") {
    options.device = {DeviceType::kCuda, static_cast<int>(spec_.device_index)};
    // A little more than needed where the device is newer; nothing where the plan predicts nothing.
    MemoryInputs inputs = MemoryInputsOf(spec_.job, spec_.plan, CudaMachine("8.0"));
    if (const Mesh& mesh = spec_.plan.mesh; mesh.pipeline > 1) {
      inputs.shape = ShapeOfStages(
          inputs.shape, spec_.plan.stage_blocks, mesh.pipeline,
          engine::MeshLayout(mesh).CoordinateOf(spec_.rank, engine::MeshAxis::kPipeline));
    }
    options.expected_bytes =
        std::max<int64_t>(BytesOfRank(spec_.plan, spec_.rank) - BytesOutsideArena(inputs), 0);
  }
  WEFT_ASSIGN_OR_RETURN(device_, engine::ComputeDevice::Open(options));
  context_ = device_->NewContext();
  context_.seed = static_cast<uint64_t>(spec_.job.train.seed);
  return OkStatus();
}

Status Attempt::Join() {
  engine::CollectiveOptions options;
  options.rank = static_cast<int>(spec_.rank);
  options.size = static_cast<int>(spec_.world_size);
  if (!spec_.host.empty()) options.host = spec_.host;
  options.device = context_.stream.device;
  options.timeout = PatienceOf(spec_.job.train, options.timeout);
  WEFT_ASSIGN_OR_RETURN(group_, engine::ConnectCollective(options, store_));
  const engine::ReductionAxes axes = reduction_axes();
  WEFT_ASSIGN_OR_RETURN(
      groups_, engine::MeshGroups::Make(group_.get(), engine::MeshLayout(spec_.plan.mesh),
                                        {kTensorAxis, axes.gradients, kPipelineAxis, kContextAxis,
                                         kExpertAxis, axes.same_experts, axes.outer}));
  if (engine::Collective* ranks = groups_.Along(kTensorAxis)) {
    WEFT_ASSIGN_OR_RETURN(tensor_, engine::TensorParallel::New(ranks, spec_.plan.sequence_parallel,
                                                               spec_.plan.tensor_rows));
  }
  if (engine::Collective* ranks = groups_.Along(kContextAxis)) {
    sequences_.emplace(ranks, spec_.job.resources.context_method);
  }
  if (engine::Collective* ranks = groups_.Along(kExpertAxis)) experts_.emplace(ranks);
  if (engine::Collective* stages = groups_.Along(kPipelineAxis)) {
    WEFT_ASSIGN_OR_RETURN(
        pipeline_, engine::PipelineParallel::New(
                       stages, {spec_.plan.pipeline_schedule, spec_.plan.pipeline_chunks,
                                !spec_.job.model.untied_classifier,
                                FirstTrainedStage(spec_.job.model, spec_.plan.stage_blocks)}));
  }
  books_ = CollectiveBooks(groups_.Accounts());
  if (tensor_) books_.Add(tensor_->Accounts());
  if (pipeline_ != nullptr) books_.Add(pipeline_->Accounts());
  return OkStatus();
}

int64_t Attempt::saving_rank() const {
  const engine::MeshLayout layout(spec_.plan.mesh);
  const int64_t shards = saving_replicas();
  const int64_t data = layout.CoordinateOf(spec_.rank, engine::MeshAxis::kData);
  const int64_t chunks = layout.CoordinateOf(spec_.rank, engine::MeshAxis::kContext);
  // Workers that make local steps save each, and of their ranks that share sequences the first.
  const int64_t shard = makes_local_steps()
                            ? chunks * shards + data
                            : data * layout.degree(engine::MeshAxis::kContext) + chunks;
  if (shard >= shards) return saving_ranks();
  const int64_t stage = layout.CoordinateOf(spec_.rank, engine::MeshAxis::kPipeline);
  const int64_t experts = layout.CoordinateOf(spec_.rank, engine::MeshAxis::kExpert);
  return ((stage * shards + shard) * spec_.plan.mesh.expert + experts) * spec_.plan.mesh.tensor +
         layout.CoordinateOf(spec_.rank, engine::MeshAxis::kTensor);
}

Result<int64_t> Attempt::CountParameters() {
  const engine::ParameterSet& parameters = model_->parameters();
  std::array<double, 1> count = {static_cast<double>(parameters.ElementCount())};
  if (experts_) WEFT_RETURN_IF_ERROR(engine::SumScalars(experts_->group(), count));
  if (pipeline_ != nullptr) WEFT_RETURN_IF_ERROR(pipeline_->SumScalars(count));
  return static_cast<int64_t>(count[0]);
}

Status Attempt::AgreeOnData() {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all, group_->AllGather(data_.fingerprint));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      return InvalidError("rank 0 read data " + all[0] + ", rank " + std::to_string(rank) +
                          " read " + all[rank] +
                          "; hint: the training files must be the same on all machines");
    }
  }
  return OkStatus();
}

Status Attempt::BuildModel() {
  engine::ModelOptions options = engine::ModelOptionsOf(spec_.plan, spec_.job.train);
  if (tensor_) options.tensor = &*tensor_;
  if (sequences_) options.context = &*sequences_;
  if (experts_) options.experts = &*experts_;
  if (pipeline_ != nullptr) {
    WEFT_ASSIGN_OR_RETURN(options.pipeline, engine::PipelinePartOf(spec_.plan, pipeline_->rank(),
                                                                   spec_.job.model.layers));
  }
  const int64_t replica = engine::MeshLayout(spec_.plan.mesh).ReplicaOf(spec_.rank);
  const engine::ReductionAxes axes = reduction_axes();
  engine::Collective* const same_parameters = groups_.Along(axes.gradients);
  if (same_parameters != nullptr) {
    options.update_rank = same_parameters->rank() % ShardRanks(spec_.plan);
  }
  WEFT_ASSIGN_OR_RETURN(model_, engine::NewModel(context_, spec_.job.model, options));
  WEFT_RETURN_IF_ERROR(model_->parameters().Initialize(context_.seed));
  engine::ParameterSet* const parameters = &model_->parameters();
  WEFT_ASSIGN_OR_RETURN(
      reducer_, engine::NewReducer(context_, spec_.plan, same_parameters, parameters,
                                   options.precision->products, groups_.Along(axes.same_experts)));
  if (reducer_ != nullptr) books_.Add(reducer_->Accounts());
  outer_ = engine::NewOuterReducer(context_, spec_.plan, groups_.Along(axes.outer), same_parameters,
                                   parameters);
  offload_ = engine::PlannedOffload::Of(spec_.plan, context_, parameters, reducer_.get());
  WEFT_ASSIGN_OR_RETURN(trainer_, engine::Trainer::New(spec_.job, spec_.plan,
                                                       {.context = &context_,
                                                        .model = model_.get(),
                                                        .train = data_.train.get(),
                                                        .validation = data_.validation.get(),
                                                        .reducer = GradientsLeave(),
                                                        .outer = outer_.get(),
                                                        .rank = replica,
                                                        .tensor = options.tensor,
                                                        .sequences = options.context,
                                                        .experts = options.experts,
                                                        .pipeline = pipeline_.get()}));
  return OkStatus();
}

engine::GradientReducer* Attempt::GradientsLeave() const {
  if (offload_.gradients != nullptr) return offload_.gradients.get();
  return reducer_.get();
}

Status Attempt::OpenOutputs(const StartPoint& start) {
  if (!start.checkpoint_path.empty()) saved_step_ = start.counters.step;
  if (!first_rank()) return OkStatus();
  if (!data_.padding.empty()) Event("info", data_.padding);
  for (const std::string& warning : data_.warnings) Event("warning", warning);
  if (!start.checkpoint_path.empty()) {
    checkpoints_->KeepResumeStep(start.counters.step);
    Event("info", "resumed from " + start.checkpoint_path);
  }
  if (!data_.tokenizer_path.empty()) {
    // Beside the checkpoints, so that the run folder alone is enough to use the model.
    WEFT_ASSIGN_OR_RETURN(std::vector<TokenizerFile> files,
                          ReadTokenizerFiles(env_, data_.tokenizer_path));
    WEFT_RETURN_IF_ERROR(WriteTokenizerFiles(env_, spec_.run_dir, files));
  }
  if (start.checkpoint_path.empty()) {
    WEFT_ASSIGN_OR_RETURN(const UsageFiles usage,
                          ReadUsageFiles(env_, spec_.job.model.import_path));
    WEFT_RETURN_IF_ERROR(SaveUsageFiles(env_, spec_.run_dir, usage));
  }
  if (classifies()) WEFT_RETURN_IF_ERROR(WriteClassNames(env_, spec_.run_dir, data_.classes));
  WEFT_ASSIGN_OR_RETURN(curve_, LossCurve::Open(env_, spec_.run_dir, start.counters.step));
  return OkStatus();
}

Result<AttemptOutcome> Attempt::Train() {
  Result<AttemptOutcome> outcome = TrainToTheEnd();
  ended_ = outcome.ok();
  if (outcome.status().code() != StatusCode::kUnavailable || pipeline_ == nullptr) return outcome;
  // A stage sees its neighbours alone; the group of all ranks knows whom it has lost.
  for (int wait = 0; wait < 50 && group_->Health().ok(); ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (const Status lost = group_->Health(); !lost.ok()) {
    return UnavailableError(lost.message() + ": " + outcome.status().message());
  }
  return outcome;
}

Result<AttemptOutcome> Attempt::TrainToTheEnd() {
  speed_.emplace(steady_clock::now());
  const JobSpec& job = spec_.job;
  while (!trainer_->finished()) {
    WEFT_RETURN_IF_ERROR(Failpoint("trainer.before_step"));
    WEFT_RETURN_IF_ERROR(Step());
    if (!trainer_->AtOuterStep()) {
      // Nothing is asked of the others here, but one that is gone is noticed.
      WEFT_RETURN_IF_ERROR(group_->Health());
      continue;
    }
    const int64_t step = trainer_->counters().step;
    WEFT_ASSIGN_OR_RETURN(Votes votes, CollectVotes());
    if (votes.fenced) {
      return ConflictError("attempt " + std::to_string(spec_.epoch) + " of job " + spec_.job_id +
                           " was replaced by a newer one");
    }
    if (profile_ && (profile_->done() || votes.stop)) WEFT_RETURN_IF_ERROR(FinishProfile());
    if (!votes.stop) {
      WEFT_ASSIGN_OR_RETURN(const bool went_back, Guard());
      if (went_back) continue;
    }
    if (trainer_->finished()) break;
    if (votes.stop) {
      Tell("saving");
      Status saved = CheckState(0);
      if (saved.ok()) saved = SaveAndWait();
      if (!saved.ok()) {
        Event("error", "stopped without a checkpoint of step " + std::to_string(step) + ": " +
                           saved.message());
        return AttemptOutcome{step, "", std::nullopt};
      }
      return AttemptOutcome{step, engine::CheckpointPath(spec_.run_dir, step), std::nullopt};
    }
    if (votes.profile_steps > 0) {
      profile_.emplace(context_, books_, step + 1, votes.profile_steps);
    }
    if (IsDue(job.train, job.train.eval_every_steps, step)) WEFT_RETURN_IF_ERROR(EvaluateNow());
    if (IsDue(job.train, job.checkpoint.every_steps, step)) {
      Tell("saving");
      WEFT_RETURN_IF_ERROR(SaveInBackground());
      Tell("training");
    }
  }
  return Finish();
}

void Attempt::TellMemory() {
  std::string text =
      "memory of this rank: the plan expected " + MemoryText(spec_.plan.prediction.memory_per_rank);
  if (device_ != nullptr) {
    text += "; it held at most, part by part, " + MemoryText(device_->allocator().Peaks());
  }
  if (const int64_t limit = spec_.job.resources.memory_per_rank_bytes; limit > 0) {
    text += "; resources.memory_per_rank_bytes allows " + HumanBytes(limit);
  }
  if (spec_.plan.device == "cuda") {
    const auto memory = kernels::cuda::MemoryOf(static_cast<int>(spec_.device_index));
    if (memory.ok()) {
      text += "; of the " + HumanBytes(static_cast<int64_t>(memory->total)) + " of GPU " +
              std::to_string(spec_.device_index) + ", " +
              HumanBytes(static_cast<int64_t>(memory->free)) + " are free";
    }
  }
  Event("error", text);
}

Status Attempt::Step() {
  engine::Stopwatch watch;
  WEFT_ASSIGN_OR_RETURN(engine::StepReport report, trainer_->Step());
  if (profile_) profile_->OnStep(watch.Lap(), report.tiers);
  const engine::TrainCounters& counters = trainer_->counters();
  ProgressMessage progress;
  progress.step = counters.step;
  progress.steps_total = spec_.job.train.steps;
  progress.loss = IfFinite(report.loss);
  if (classifies()) progress.accuracy = report.Accuracy();
  progress.gradient_norm = IfFinite(report.gradient_norm);
  progress.learning_rate = report.learning_rate;
  progress.skipped = report.skipped;
  progress.overflow = report.overflow;
  progress.non_finite_gradients = report.non_finite_gradients;
  progress.loss_scale = report.loss_scale;
  progress.technique_metrics = report.technique_metrics;
  progress.tokens = counters.tokens;
  progress.padding_ratio = static_cast<double>(report.padding_tokens) /
                           static_cast<double>(std::max<int64_t>(report.tokens, 1));
  progress.step_seconds = speed_->Step(steady_clock::now(), report.tokens - report.padding_tokens);
  progress.tokens_per_second = speed_->tokens_per_second();
  progress.phases = {report.seconds.data,
                     report.seconds.forward,
                     report.seconds.backward,
                     report.seconds.communication_exposed,
                     report.seconds.optimizer,
                     std::exchange(checkpoint_stall_, 0),
                     std::exchange(evaluation_seconds_, 0)};
  progress.memory_peak = peak_memory_ = report.peak_memory;
  progress.memory_step = report.step_memory;
  progress.tiers = report.tiers;
  std::vector<CollectiveUse> totals = books_.Totals();
  progress.collectives = Difference(totals, told_);
  told_ = std::move(totals);
  progress.norms = std::move(report.norms);
  progress.spike = report.spike;
  progress.rolled_back = std::exchange(rolled_back_, false);
  progress.skipped_steps = counters.skipped_steps;
  progress.loss_spikes = counters.loss_spikes;
  progress.rollbacks = counters.rollbacks;
  training_seconds_ += progress.step_seconds;
  if (curve_) {
    WEFT_RETURN_IF_ERROR(
        curve_->Append(counters.step, report.loss, report.learning_rate, progress.accuracy));
    if (counters.step % spec_.job.train.log_every_steps == 0 || trainer_->finished()) {
      WEFT_LOG_INFO << "step " << counters.step << "/" << progress.steps_total << " loss "
                    << report.loss << AccuracyText(progress.accuracy) << " gradient norm "
                    << report.gradient_norm << " learning rate " << report.learning_rate << " "
                    << std::llround(progress.tokens_per_second) << " tokens/s"
                    << (report.padding_tokens > 0
                            ? " padding " +
                                  std::to_string(std::llround(progress.padding_ratio * 100)) + " %"
                            : "")
                    << MetricsText(report.technique_metrics);
    }
  }
  reporter_.Report(progress);

  // An overflow that lowered the loss scale is how the scale is found, and nothing to worry about.
  if (report.overflow) return OkStatus();
  const bool local = !trainer_->AtOuterStep();
  if (!local) skipped_in_a_row_ = report.skipped ? skipped_in_a_row_ + 1 : 0;
  if (!report.skipped || !(first_rank() || local)) return OkStatus();
  const std::string step = "step " + std::to_string(counters.step);
  if (makes_local_steps() && !local) {
    Event("warning", step + ": a rank has dropped all its updates since the last outer step");
    return OkStatus();
  }
  Event("warning", step + (local ? " of rank " + std::to_string(spec_.rank) : "") + ": " +
                       (report.spike ? "the loss of " + engine::DescribeSpike(
                                                            counters.recent_losses, report.loss)
                                     : "the loss or a gradient is not finite") +
                       "; its update was dropped");
  return OkStatus();
}

Result<bool> Attempt::Guard() {
  const engine::TrainCounters& counters = trainer_->counters();
  switch (engine::AfterSkips(spec_.job.train.guard, skipped_in_a_row_, counters.rollbacks)) {
    case engine::GuardAction::kGoOn:
      return false;
    case engine::GuardAction::kRollBack:
      WEFT_RETURN_IF_ERROR(RollBack());
      return true;
    case engine::GuardAction::kGiveUp:
      break;
  }
  return NumericsError("the updates of " + std::to_string(skipped_in_a_row_) +
                       " steps in a row up to step " + std::to_string(counters.step) +
                       " were dropped, after " + std::to_string(counters.rollbacks) + " of " +
                       std::to_string(spec_.job.train.guard.max_rollbacks) + " rollbacks");
}

Status Attempt::RollBack() {
  WEFT_RETURN_IF_ERROR(FinishProfile());
  Tell("loading");
  const engine::TrainCounters bad = trainer_->counters();
  // A checkpoint that is on its way may be the one to go back to; if it fails, the one before is.
  if (checkpoints_) (void)checkpoints_->Wait();
  // Made anew, so that without any checkpoint the training begins as it did the first time.
  trainer_.reset();
  offload_ = {};
  reducer_.reset();
  outer_.reset();
  model_.reset();
  WEFT_RETURN_IF_ERROR(BuildModel());
  WEFT_ASSIGN_OR_RETURN(StartPoint start,
                        PrepareState(env_, spec_, data_.fingerprint, *model_, *trainer_, *group_));
  start.counters = engine::AfterRollback(bad, start.counters);
  trainer_->Restored(start.counters);
  Tell("training");
  skipped_in_a_row_ = 0;
  rolled_back_ = true;
  saved_step_ = -1;
  if (!first_rank()) return OpenOutputs(start);
  WEFT_RETURN_IF_ERROR(SaveRollback(env_, spec_.run_dir, start.counters));
  for (const std::string& warning : start.warnings) Event("warning", warning);
  WEFT_RETURN_IF_ERROR(OpenOutputs(start));
  Event("warning", "went back from step " + std::to_string(bad.step) + " to step " +
                       std::to_string(start.counters.step) +
                       " and leaves out the data in between (rollback " +
                       std::to_string(start.counters.rollbacks) + " of " +
                       std::to_string(spec_.job.train.guard.max_rollbacks) + ")");
  return OkStatus();
}

Result<Attempt::Votes> Attempt::CollectVotes() {
  const bool may_profile = first_rank() && !profile_;
  std::array<double, 3> votes = {
      reporter_.StopRequested() ? 1.0 : 0.0, checkpoints_ && checkpoints_->fenced() ? 1.0 : 0.0,
      may_profile ? static_cast<double>(reporter_.TakeProfileRequest()) : 0.0};
  if (group_->size() > 1) WEFT_RETURN_IF_ERROR(engine::SumScalars(*group_, votes));
  return Votes{votes[0] > 0, votes[1] > 0, static_cast<int64_t>(votes[2])};
}

Result<bool> Attempt::OnAnyRank(bool own) {
  std::array<double, 1> sum = {own ? 1.0 : 0.0};
  if (saving_replicas() > 1) {
    WEFT_RETURN_IF_ERROR((outer_ != nullptr ? outer_ : reducer_)->SumOverParts(sum));
  }
  if (tensor_) WEFT_RETURN_IF_ERROR(tensor_->SumScalars(sum));
  if (experts_) WEFT_RETURN_IF_ERROR(engine::SumScalars(experts_->group(), sum));
  if (pipeline_ != nullptr) WEFT_RETURN_IF_ERROR(pipeline_->SumScalars(sum));
  return sum[0] > 0;
}

Status Attempt::FinishProfile() {
  if (!profile_) return OkStatus();
  Tell("saving");
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> events, profile_->GatherEvents(*group_));
  if (first_rank()) {
    Result<ProfileReport> report = profile_->Write(env_, spec_.run_dir, events);
    if (report.ok()) {
      Event("info",
            "profile of " + std::to_string(report->steps) + " steps in " + report->trace_path);
      reporter_.Report(ProfiledMessage{"", *report});
    } else {
      reporter_.Report(ProfiledMessage{"writing the trace: " + report.status().message(), {}});
    }
  }
  profile_.reset();
  Tell("training");
  return OkStatus();
}

Status Attempt::EvaluateNow() {
  if (data_.validation == nullptr) return OkStatus();
  // A profile is of the steps alone.
  engine::Profiler* const profiler = std::exchange(context_.profiler, nullptr);
  Tell("evaluating");
  WEFT_ASSIGN_OR_RETURN(engine::EvaluationReport report, trainer_->Evaluate());
  Tell("training");
  context_.profiler = profiler;
  evaluation_seconds_ += report.seconds;
  validation_loss_ = IfFinite(report.loss);
  if (classifies()) validation_accuracy_ = report.Accuracy();
  if (first_rank() && validation_loss_) {
    const int64_t step = trainer_->counters().step;
    WEFT_LOG_INFO << "step " << step << " validation loss " << report.loss
                  << AccuracyText(validation_accuracy_);
    reporter_.Report(EvaluationMessage{step, report.loss, validation_accuracy_});
  }
  return OkStatus();
}

Result<AttemptOutcome> Attempt::Finish() {
  WEFT_RETURN_IF_ERROR(FinishProfile());
  WEFT_RETURN_IF_ERROR(CheckState(1));
  WEFT_RETURN_IF_ERROR(EvaluateNow());
  Tell("saving");
  WEFT_RETURN_IF_ERROR(SaveAndWait());
  AttemptOutcome outcome{trainer_->counters().step,
                         engine::CheckpointPath(spec_.run_dir, trainer_->counters().step),
                         Summarize()};
  if (first_rank()) {
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env_, JoinPath(spec_.run_dir, "summary.json"),
                                         ToJson(*outcome.summary).dump(2) + "\n"));
  }
  return outcome;
}

RunSummary Attempt::Summarize() const {
  const engine::TrainCounters& counters = trainer_->counters();
  RunSummary summary;
  summary.job_id = spec_.job_id;
  summary.epoch = spec_.epoch;
  summary.steps = counters.step;
  summary.skipped_steps = counters.skipped_steps;
  summary.parameters = parameters_;
  summary.tokens = counters.tokens;
  if (curve_) summary.train_loss_nats = curve_->RecentMean();
  summary.validation_loss_nats = validation_loss_;
  if (curve_) summary.train_accuracy = curve_->RecentAccuracy();
  summary.validation_accuracy = validation_accuracy_;
  summary.unigram_entropy_nats = data_.unigram_entropy;
  summary.resumed_from_step = first_step_;
  summary.seconds = std::chrono::duration<double>(steady_clock::now() - begin_).count();
  if (training_seconds_ > 0) {
    summary.tokens_per_second =
        static_cast<double>(counters.tokens - first_tokens_) / training_seconds_;
  }
  if (speed_) {
    summary.median_step_seconds = speed_->MedianSeconds();
    summary.timed_steps = speed_->timed_steps();
  }
  summary.memory_peak = peak_memory_;
  summary.checkpoint_path = engine::CheckpointPath(spec_.run_dir, counters.step);
  return summary;
}

void Attempt::Event(const std::string& level, const std::string& text) {
  WEFT_LOG_AT(level == "info"      ? LogLevel::kInfo
              : level == "warning" ? LogLevel::kWarning
                                   : LogLevel::kError)
      << text;
  reporter_.Report(EventMessage{level, text});
}

}  // namespace weft::trainer
