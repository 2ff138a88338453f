#include "worker/trainer/attempt.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/formats/tokenizer_files.h"
#include "common/formats/usage_files.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_sizes.h"
#include "common/model/pipeline_shape.h"
#include "common/model/sharded_parameters.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/mixture_of_experts.h"
#include "common/spec/planned_job.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/comm/exchange_check.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/techniques/parallel/new_reducer.h"
#include "worker/trainer/class_names.h"
#include "worker/trainer/grown_state.h"
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

/// How long a rank waits for the others: as long as ever for each step that they may be behind, or
/// for one and the rest of a round by time.
std::chrono::milliseconds PatienceOf(const TrainSpec& train, std::chrono::milliseconds of_step) {
  constexpr std::chrono::milliseconds kMost = std::chrono::hours(24);
  if (TimesRounds(train)) {
    const auto round = std::chrono::ceil<std::chrono::milliseconds>(
        std::chrono::duration<double>(train.local_round_seconds));
    return std::min(of_step + round, kMost);
  }
  return train.local_steps < kMost / of_step ? train.local_steps * of_step : kMost;
}

}  // namespace

Attempt::Attempt(Env& env, const AttemptSpec& spec, TrainingData data, Reporter& reporter,
                 engine::Store& store, const PhaseSearchSpec& search)
    : env_(env),
      spec_(spec),
      data_(std::move(data)),
      reporter_(reporter),
      activity_(reporter),
      store_(store),
      search_(search),
      begin_(steady_clock::now()) {
  spec_.job.model = ResolveModel(spec.job, data_);
  if (spec.membership > 0) {
    engine::RoundMembers members{spec.membership, spec.rank, {spec.rank}};
    if (!spec.joins) {
      members.members.resize(static_cast<size_t>(spec.world_size));
      std::iota(members.members.begin(), members.members.end(), 0);
    }
    peers_ = std::make_unique<RoundPeers>(reporter, store, std::move(members));
  }
  if (spec.joins) {
    // By itself until it has joined the others.
    has_state_ = false;
    spec_.rank = 0;
    spec_.world_size = spec_.plan.mesh.data = 1;
  }
  if (search_.steps == 0) return;
  elastic_.emplace();
  elastic_->layers = search_.layers;
  if (elastic_->layers.empty()) elastic_->layers = {spec_.job.model.layers};
  elastic_->image_sizes = search_.image_sizes;
  elastic_->seed = spec_.job.train.seed;
}

Attempt::~Attempt() {
  if (peers_ != nullptr) {
    peers_->Watch(nullptr);
    if (!ended_) peers_->Leave();
  }
  // The peers need not wait for what will never come, nor this device for them.
  if (group_ != nullptr && !ended_) group_->Abort();
  if (pipeline_ != nullptr && !ended_) pipeline_->Abort();
}

Result<bool> Attempt::Prepare() {
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
  if (!has_state_) return PrepareToJoin();
  WEFT_RETURN_IF_ERROR(CheckFolder());
  if (first_rank()) {
    WEFT_ASSIGN_OR_RETURN(seconds_before_, ReadRunSeconds(env_, spec_.run_dir));
  }
  WEFT_RETURN_IF_ERROR(OpenCheckpoints());
  WEFT_RETURN_IF_ERROR(Join());
  WEFT_RETURN_IF_ERROR(AgreeOnData());
  WEFT_RETURN_IF_ERROR(RestoreSnapshot());
  WEFT_RETURN_IF_ERROR(LoadAddedNetwork());
  WEFT_ASSIGN_OR_RETURN(StartPoint start, BuildAndRestore());
  WEFT_RETURN_IF_ERROR(CheckAddedNetwork(start));
  ReportDamaged(start);
  if (const std::string warning = RouterWarning(spec_.job.model);
      first_rank() && !warning.empty()) {
    Event("warning", warning);
  }
  for (const std::string& note : start.notes) Event("info", note);
  grown_ = start.grown;
  loss_before_ = start.loss_before;
  fit_flops_ = start.fit_flops;
  if (!grown_ && !spec_.start.run_dir.empty()) {
    WEFT_ASSIGN_OR_RETURN(const GrowthLosses losses, ReadGrowthLosses(env_, spec_.run_dir));
    start_validation_loss_ = losses.after_nats;
    fit_flops_ = losses.fit_flops;
  }
  if (!spec_.start.run_dir.empty()) {
    WEFT_ASSIGN_OR_RETURN(chosen_, ReadSizeChoice(env_, spec_.start.run_dir));
  }
  first_step_ = start.counters.step;
  first_tokens_ = start.counters.tokens;
  base_fingerprint_ = added_network_ == nullptr ? start.base_fingerprint : added_fingerprint_;
  base_tensors_ = start.base_tensors;
  WEFT_RETURN_IF_ERROR(OpenOutputs(start));
  WEFT_RETURN_IF_ERROR(CountParameters());
  const double seconds = SecondsSince(begin_);
  if (first_rank() && spec_.job.checkpoint.interval == "auto") {
    saves_.emplace(spec_.job, spec_.mean_seconds_between_failures);
    saves_->OnStart(first_step_, seconds);
  }
  reporter_.Report(StartedMessage{first_step_, start.checkpoint_path, parameters_, seconds});
  if (peers_ != nullptr) peers_->Watch(group_.get());
  return true;
}

Status Attempt::OpenCheckpoints() {
  if (saving_rank() >= saving_ranks()) return OkStatus();
  engine::CheckpointWriterOptions options;
  options.env = &env_;
  options.run_dir = spec_.run_dir;
  options.epoch = spec_.epoch;
  options.keep_last = spec_.job.checkpoint.keep_last;
  engine::Store& store = peers_ != nullptr ? peers_->store() : store_;
  if (saving_ranks() > 1) options.peers.emplace(&store, saving_rank(), saving_ranks());
  if (first_rank()) options.report = [this](const auto& p) { ReportCheckpoint(p); };
  WEFT_ASSIGN_OR_RETURN(checkpoints_, engine::CheckpointWriter::Open(std::move(options)));
  if (resume_step_) checkpoints_->KeepResumeStep(*resume_step_);
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
  options.host = engine::HostMemoryPoolOf(spec_.plan, spec_.job.resources.memory_per_rank_bytes);
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
  context_.observer = &activity_;
  return OkStatus();
}

engine::CollectiveOptions Attempt::GroupOptions() const {
  engine::CollectiveOptions options;
  options.rank = static_cast<int>(spec_.rank);
  options.size = static_cast<int>(spec_.world_size);
  if (!spec_.host.empty()) options.host = spec_.host;
  options.device = context_.stream.device;
  options.timeout = PatienceOf(spec_.job.train, options.timeout);
  return options;
}

Status Attempt::Join() {
  WEFT_RETURN_IF_ERROR(Failpoint("trainer.before_join"));
  WEFT_ASSIGN_OR_RETURN(group_, engine::ConnectCollective(GroupOptions(), store_));
  WEFT_ASSIGN_OR_RETURN(const engine::ExchangeCheck check,
                        engine::CheckExchange(*group_, context_));
  if (!check.error.empty()) {
    const std::string text = "before the training " + check.error +
                             "; hint: check network cards and memory of those machines";
    return check.suspects.contains(group_->rank()) ? SilentCorruptionError(text)
                                                   : AbortedError(text);
  }
  return MakeGroups();
}

Status Attempt::MakeGroups() {
  const engine::ReductionAxes axes = reduction_axes();
  std::vector<engine::AxisSet> sets = {kTensorAxis, axes.gradients,    kPipelineAxis, kContextAxis,
                                       kExpertAxis, axes.same_experts, axes.outer};
  if (LearnsGrowth(spec_.start.growth)) sets.push_back(engine::kSequenceAxes);
  WEFT_ASSIGN_OR_RETURN(
      groups_, engine::MeshGroups::Make(group_.get(), engine::MeshLayout(spec_.plan.mesh), sets));
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
  accounts_ = CollectiveAccounts(groups_.Accounts());
  if (tensor_) accounts_.Add(tensor_->Accounts());
  if (pipeline_ != nullptr) accounts_.Add(pipeline_->Accounts());
  return OkStatus();
}

int64_t Attempt::saving_rank() const {
  const engine::MeshLayout layout(spec_.plan.mesh);
  const int64_t shards = saving_replicas();
  const int64_t data = layout.CoordinateOf(spec_.rank, engine::MeshAxis::kData);
  const int64_t chunks = layout.CoordinateOf(spec_.rank, engine::MeshAxis::kContext);
  // With local steps each worker saves, by the first of its context-parallel ranks.
  const int64_t shard = makes_local_steps()
                            ? chunks * shards + data
                            : data * layout.degree(engine::MeshAxis::kContext) + chunks;
  if (shard >= shards) return saving_ranks();
  const int64_t stage = layout.CoordinateOf(spec_.rank, engine::MeshAxis::kPipeline);
  const int64_t experts = layout.CoordinateOf(spec_.rank, engine::MeshAxis::kExpert);
  return ((stage * shards + shard) * spec_.plan.mesh.expert + experts) * spec_.plan.mesh.tensor +
         layout.CoordinateOf(spec_.rank, engine::MeshAxis::kTensor);
}

Status Attempt::CountParameters() {
  const engine::ParameterSet& parameters = model_->parameters();
  std::array<double, 2> counts = {static_cast<double>(parameters.ElementCount()),
                                  static_cast<double>(parameters.TrainedCount())};
  if (experts_) WEFT_RETURN_IF_ERROR(engine::SumScalars(experts_->group(), counts));
  if (pipeline_ != nullptr) WEFT_RETURN_IF_ERROR(pipeline_->SumScalars(counts));
  parameters_ = static_cast<int64_t>(counts[0]);
  trained_parameters_ = static_cast<int64_t>(counts[1]);
  return OkStatus();
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
  options.growth = MaskedGrowthOf(spec_.job);
  if (elastic_) options.elastic = &*elastic_;
  options.logits_source = added_network_.get();
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
  const DType gathered =
      GatheredMatrices(options.precision->products, IsMeshDeterministic(spec_.job.train),
                       context_.stream.device.type == DeviceType::kCuda);
  WEFT_ASSIGN_OR_RETURN(
      reducer_, engine::NewReducer(context_, spec_.plan, same_parameters, parameters, gathered,
                                   groups_.Along(axes.same_experts)));
  if (reducer_ != nullptr) accounts_.Add(reducer_->Accounts());
  outer_ = engine::NewOuterReducer(context_, spec_.plan, groups_.Along(axes.outer), same_parameters,
                                   parameters);
  engine::RoundMembers members;
  if (peers_ != nullptr) members = peers_->members();
  offload_ = engine::PlannedOffload::Of(spec_.plan, context_, parameters, reducer_.get());
  WEFT_ASSIGN_OR_RETURN(trainer_, engine::Trainer::New(spec_.job, spec_.plan,
                                                       {.context = &context_,
                                                        .model = model_.get(),
                                                        .train = data_.train.get(),
                                                        .validation = data_.validation.get(),
                                                        .reducer = GradientsLeave(),
                                                        .outer = outer_.get(),
                                                        .rank = replica,
                                                        .round_members = members,
                                                        .tensor = options.tensor,
                                                        .sequences = options.context,
                                                        .experts = options.experts,
                                                        .pipeline = pipeline_.get()}));
  return OkStatus();
}

Result<StartPoint> Attempt::BuildAndRestore() {
  // Before, so that no rank has two models.
  WEFT_ASSIGN_OR_RETURN(std::optional<LearnedStart> learned, LearnGrowth());
  WEFT_RETURN_IF_ERROR(BuildModel());
  return PrepareState(env_, spec_, data_.fingerprint, learned ? &*learned : nullptr, *model_,
                      *trainer_, *group_);
}

engine::GradientReducer* Attempt::GradientsLeave() const {
  if (offload_.gradients != nullptr) return offload_.gradients.get();
  return reducer_.get();
}

Status Attempt::OpenOutputs(const StartPoint& start) {
  reported_step_ = start.counters.step;
  if (!start.checkpoint_path.empty()) saved_step_ = start.counters.step;
  if (!start.checkpoint_path.empty()) resume_step_ = start.counters.step;
  if (!first_rank()) return OkStatus();
  if (!data_.padding.empty()) Event("info", data_.padding);
  for (const std::string& warning : data_.warnings) Event("warning", warning);
  if (!start.checkpoint_path.empty()) {
    checkpoints_->KeepResumeStep(start.counters.step);
    Event("info", "resumed from " + start.checkpoint_path);
  }
  if (!data_.tokenizer_path.empty()) {
    // Next to the checkpoints, so that the run folder alone is enough to use the model.
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

}  // namespace weft::trainer
