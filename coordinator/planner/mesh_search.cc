#include "coordinator/planner/mesh_search.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/model/gradient_bytes.h"
#include "common/model/pipeline_shape.h"
#include "common/pipeline/named_schedule.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/offload.h"
#include "common/spec/pipeline_parallel.h"
#include "common/spec/shard_ranks.h"
#include "coordinator/planner/remat_choice.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 20;

std::vector<int64_t> Divisors(int64_t value) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= value; ++d) {
    if (value % d != 0) continue;
    divisors.push_back(d);
    if (d * d != value) divisors.push_back(value / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

bool OffloadsOptimizer(const JobSpec& job) {
  return job.resources.offload_optimizer != "none";
}

/// Ranks that share matrices, or experts, update their parts of them.
OptimizerBytes OptimizerOfRank(const JobSpec& job, const ModelShape& shape,
                               const PrecisionRecipe& precision) {
  OptimizerBytes bytes = OptimizerBytesOf(shape.spec, job, precision.products, shape.expert_ranks);
  if (shape.tensor == 1) return bytes;
  const double part =
      static_cast<double>(shape.Updated()) / static_cast<double>(ModelShape(shape.spec).Updated());
  bytes.state = static_cast<int64_t>(part * static_cast<double>(bytes.state));
  return bytes;
}

/// Accounts of memory under way: choosing what to recompute asks for some twice.
class Accounts {
 public:
  const MemoryBreakdown* Find(const RematChoice& choice) const {
    for (const auto& [blocks, attention, memory] : known_) {
      if (blocks == choice.recomputed_blocks && attention == choice.attention_blocks) {
        return &memory;
      }
    }
    return nullptr;
  }
  void Add(const RematChoice& choice, const MemoryBreakdown& memory) {
    known_.emplace_back(choice.recomputed_blocks, choice.attention_blocks, memory);
  }

 private:
  std::vector<std::tuple<int64_t, int64_t, MemoryBreakdown>> known_;
};

}  // namespace

MeshSearch::MeshSearch(const JobSpec& job, const WorkerGroups& workers, const JobSpec* asked)
    : job_(job),
      workers_(workers),
      asked_(asked),
      sequence_length_(SequenceLength(job)),
      tensor_(job.resources.tensor_parallel),
      pipeline_(job.resources.pipeline_parallel),
      context_{job.resources.context_parallel, job.resources.context_method == "ulysses"},
      precision_(PrecisionOf(job.train.precision)) {
  const ResourceSpec& resources = job.resources;
  Result<std::vector<int64_t>> cut = CutModel(job);
  WEFT_CHECK(cut.ok(), cut.status().message());
  cut_ = *std::move(cut);

  memory_.shape = ShapeOfRank(job);
  memory_.sequence_length = OwnLength();
  memory_.context = context_;
  memory_.zero_stage = resources.zero_stage;
  memory_.zero_shard_ranks = resources.zero_shard_ranks;
  memory_.bucket_bytes = BucketBytes(job, memory_.shape.spec);
  memory_.precision = &precision_;
  memory_.products = workers.products();
  memory_.product_workspace_bytes = workers.product_workspace_bytes();
  memory_.fp8 = job.train.fp8;
  memory_.optimizer = OptimizerOfRank(job, memory_.shape, precision_);
  if (resources.zero_stage == 2 || OffloadsOptimizer(job)) {
    memory_.open_gradients =
        OpenGradientBytes(memory_.shape.spec, memory_.bucket_bytes, tensor_, resources.tensor_rows);
  }
  memory_.offload_optimizer = OffloadsOptimizer(job);
  memory_.offload_activations = resources.offload_activations != "none";
  memory_.offload_parameters = resources.offload_parameters != "none";
  memory_.delayed_update = resources.delayed_update;
  memory_.recompute_segment = resources.recompute_segment;
  memory_.activation_bits = resources.activation_bits;

  if (resources.zero_stage > 2) {
    regions_.emplace(memory_.shape.spec, precision_, tensor_, resources.tensor_rows);
  }

  step_.shape = memory_.shape;
  step_.bucket_bytes = memory_.bucket_bytes;
  step_.precision = &precision_;
  step_.zero_stage = resources.zero_stage;
  step_.host_link_bytes_per_second = resources.host_link_bytes_per_second;
  step_.offloads_optimizer = OffloadsOptimizer(job);
  step_.context = context_;
  step_.local_steps = job.train.local_steps;
  // Moments of AdamW, read and written.
  if (resources.offload_optimizer == "nvme") step_.file_bytes = 2 * 8 * step_.shape.trained;
}

std::vector<Candidate> MeshSearch::Candidates() {
  std::vector<Candidate> candidates;
  StepInputs inputs = step_;
  std::set<int64_t> threads_choices = {job_.resources.threads_per_rank};
  if (job_.resources.threads_per_rank == 0) threads_choices = workers_.ThreadChoices();
  for (int64_t threads : threads_choices) {
    for (int64_t ranks : RankChoices(threads)) {
      if (IsOfAnotherMesh(ranks / Replica())) continue;
      const std::vector<int64_t> micro_batches = MicroBatchChoices(ranks / Replica());
      for (int64_t spread : workers_.SpreadChoices(ranks, threads)) {
        for (int64_t micro : micro_batches) {
          // Only when the job asks for it.
          if (micro * sequence_length_ > kMostTokens * 64) continue;
          Candidate candidate{threads, ranks, spread, micro};
          const Option option = OptionOf(candidate);
          if (!Prepare(option)) continue;
          if (!workers_.HasCores(option)) {
            ReportFewCores(option);
            continue;
          }
          candidate.least_seconds = LeastSeconds(option, inputs);
          candidates.push_back(candidate);
        }
      }
    }
  }
  return candidates;
}

std::vector<int64_t> MeshSearch::RankChoices(int64_t threads) const {
  const ResourceSpec& resources = job_.resources;
  if (resources.ranks > 0) return {resources.ranks};
  if (Offloads(resources) && job_.train.local_steps == 1) return {1};
  const int64_t slots = std::max<int64_t>(workers_.Slots(threads), 1);
  std::vector<int64_t> choices;
  for (int64_t data : Divisors(BatchSchedule(job_.train).unit())) {
    if (data % step_.shape.expert_ranks != 0) continue;
    if (data > 1 && data % std::max<int64_t>(resources.zero_shard_ranks, 1) != 0) continue;
    const int64_t ranks = data * Replica();
    if (ranks <= slots) choices.push_back(ranks);
  }
  return choices;
}

std::vector<int64_t> MeshSearch::MicroBatchChoices(int64_t ranks) const {
  const int64_t sequences = BatchSchedule(job_.train).unit() / ranks;
  if (const int64_t asked = job_.resources.micro_batch; asked > 0) {
    if (sequences % asked != 0) return {};
    return {asked};
  }
  std::vector<int64_t> choices = Divisors(sequences);
  // The noise scale compares a part of the batch with the whole.
  if (job_.train.gradient_noise_scale && ranks == 1 && choices.size() > 1 &&
      choices.back() == job_.train.global_batch) {
    choices.pop_back();
  }
  // Past a million tokens a pass nothing gets faster, and the arithmetic of
  // bytes stays in range.
  while (choices.size() > 1 && choices.back() * sequence_length_ > kMostTokens) {
    choices.pop_back();
  }
  return choices;
}

bool MeshSearch::IsOfAnotherMesh(int64_t data_ranks) const {
  if (asked_ == nullptr) return false;
  const ResourceSpec& own = job_.resources;
  const ResourceSpec& asked = asked_->resources;
  if (data_ranks == 1 && own.zero_stage != asked.zero_stage) return true;
  return own.zero_shard_ranks != asked.zero_shard_ranks && data_ranks <= own.zero_shard_ranks;
}

Option MeshSearch::OptionOf(const Candidate& candidate) const {
  Option option;
  option.on_devices = workers_.on_devices();
  option.threads = candidate.threads;
  option.ranks = candidate.ranks;
  option.tensor = tensor_;
  option.pipeline = pipeline_;
  option.context = context_.ranks;
  option.experts = step_.shape.expert_ranks;
  option.ranks_per_worker = candidate.ranks_per_worker;
  option.micro_batch = candidate.micro_batch;
  option.accumulation_steps =
      job_.train.global_batch / (option.data_ranks() * candidate.micro_batch);
  return option;
}

bool MeshSearch::Prepare(const Option& option) {
  const ResourceSpec& resources = job_.resources;
  if (pipeline_ > 1) {
    // Past so many micro-batches a pipeline has no bubble to speak of.
    constexpr int64_t kMostMicroBatches = 1024;
    const int64_t passes = option.accumulation_steps;
    if (passes > kMostMicroBatches ||
        !CheckPipelineParallel(job_, pipeline_, resources.pipeline_schedule,
                               resources.pipeline_chunks, passes)
             .ok()) {
      return false;
    }
  }
  for (size_t kind = 0; kind < workers_.rates().size(); ++kind) {
    auto [it, added] = passes_.try_emplace({kind, option.threads, option.micro_batch});
    if (!added) continue;
    it->second = CostOfPass(step_.shape, option.micro_batch, sequence_length_, precision_,
                            job_.train.fp8, job_.model.dropout, workers_.rates()[kind],
                            option.threads, context_.ranks, resources.activation_bits);
  }
  const int64_t sharers = Sharers(option.data_ranks());
  auto [it, added] = sharded_.try_emplace(sharers);
  if (added && regions_ && sharers > 1) it->second = regions_->Among(sharers);
  return true;
}

PipelineSchedule MeshSearch::ScheduleOf(const Option& option) const {
  if (pipeline_ == 1) return {};
  const ResourceSpec& resources = job_.resources;
  Result<PipelineSchedule> schedule = NamedSchedule(
      resources.pipeline_schedule, pipeline_, resources.pipeline_chunks, option.accumulation_steps);
  WEFT_CHECK(schedule.ok(), schedule.status().message());
  return *std::move(schedule);
}

PipelineStageInputs MeshSearch::StagesOf(const Option& option) const {
  return {.cut = cut_,
          .micro_batch = option.micro_batch,
          .sequence_length = sequence_length_,
          .fp8 = job_.train.fp8,
          .dropout = job_.model.dropout};
}

void MeshSearch::ReportFewCores(Option option) {
  const int64_t slots = workers_.Slots(option.threads);
  if (slots >= option.ranks || !few_cores_.misfit.empty()) return;
  MemoryInputs inputs = memory_;
  SetOption(option, inputs);
  option.memory = Memory(inputs, ScheduleOf(option));
  option.misfit = std::to_string(option.ranks) + " ranks of " + std::to_string(option.threads) +
                  " threads need more " + (workers_.on_devices() ? "GPUs or cores" : "cores") +
                  " than the workers offer: they have room for " + std::to_string(slots);
  few_cores_ = std::move(option);
}

int64_t MeshSearch::Sharers(int64_t data_ranks) const {
  return ShardRanks(job_.resources.zero_stage, job_.resources.zero_shard_ranks, data_ranks);
}

const ShardedParameters& MeshSearch::Sharded(int64_t data_ranks) const {
  return sharded_.at(Sharers(data_ranks));
}

// On GPUs the step without recomputation, as close together as the option allows: recomputing adds
// to the device's work at least as long as the processor waits less, and more machines have slower
// links. On processors that of a rank by itself, without what crosses the link block by block,
// which recomputing makes less. Several that are fewer on a machine have more of its memory's
// bandwidth, so that the products alone are certain, which the stages of a pipeline share; on GPUs
// its stages are what they are.
double MeshSearch::LeastSeconds(const Option& option, StepInputs& inputs) {
  const bool whole_step = pipeline_ == 1 && (workers_.on_devices() || option.ranks == 1);
  SetOption(option, inputs);
  inputs.ranks_on_worker = option.ranks_per_worker;
  double least = std::numeric_limits<double>::infinity();
  for (size_t kind = 0; kind < workers_.rates().size(); ++kind) {
    const RateModel& rates = workers_.rates()[kind];
    if (pipeline_ > 1 && workers_.on_devices()) {
      auto [stages, added] =
          stages_.try_emplace({kind, option.threads, option.micro_batch, option.ranks_per_worker});
      if (added) stages->second = PredictStages(inputs, StagesOf(option), rates);
      const bool split = job_.resources.pipeline_schedule == "zero_bubble";
      least = std::min(
          least, LeastPipelineSeconds(stages->second, pipeline_, option.accumulation_steps, split));
      continue;
    }
    const PassCost& pass = Pass(kind, option);
    const double seconds = whole_step ? StepSeconds(PredictStep(inputs, pass, rates))
                                      : pass.gemm_seconds *
                                            static_cast<double>(option.accumulation_steps) /
                                            static_cast<double>(pipeline_);
    least = std::min(least, seconds);
  }
  constexpr double kRounding = 1 - 1e-9;
  return kRounding * least;
}

bool MeshSearch::Judge(const Candidate& candidate, Option& option) const {
  option = OptionOf(candidate);
  MemoryInputs inputs = memory_;
  SetOption(option, inputs);
  const PipelineSchedule schedule = ScheduleOf(option);
  Accounts accounts;
  const auto fits = [&](const RematChoice& choice) {
    inputs.recomputed_blocks = option.recomputed_blocks = choice.recomputed_blocks;
    inputs.attention_blocks = option.attention_blocks = choice.attention_blocks;
    inputs.remat = option.schedule = choice.schedule;
    const MemoryBreakdown* known = choice.schedule.empty() ? accounts.Find(choice) : nullptr;
    option.memory = known != nullptr ? *known : Memory(inputs, schedule);
    if (known == nullptr && choice.schedule.empty()) accounts.Add(choice, option.memory);
    option.device_bytes = DeviceBytes(inputs, option.memory);
    return Fits(option);
  };
  // A schedule takes long to find, and none helps where what it is not about has no room.
  const RematChoice least{memory_.shape.spec.layers, 0, {}};
  if (job_.resources.recompute == "optimal" && !fits(least) && !FitsBeside(option, inputs)) {
    return false;
  }
  const RematCosts costs = CostsOfRemat(option);
  if (!ChooseRemat(job_.resources.recompute, inputs, costs, pipeline_ == 1, fits)) return false;
  option.time = SlowestRank(option, inputs, schedule, workers_.Placements(option));
  return true;
}

bool MeshSearch::Time(const std::vector<std::pair<size_t, int64_t>>& placements, Option& option) {
  if (!Prepare(option)) return false;
  MemoryInputs inputs = memory_;
  SetOption(option, inputs);
  inputs.recomputed_blocks = option.recomputed_blocks;
  inputs.attention_blocks = option.attention_blocks;
  inputs.remat = option.schedule;
  option.time = SlowestRank(option, inputs, ScheduleOf(option), placements);
  return true;
}

void MeshSearch::SetOption(const Option& option, MemoryInputs& inputs) const {
  inputs.micro_batch = option.micro_batch;
  inputs.accumulation_steps = option.accumulation_steps;
  inputs.ranks = option.data_ranks() * context_.ranks;
  inputs.threads = option.threads;
  inputs.sharded = Sharded(option.data_ranks());
}

void MeshSearch::SetOption(const Option& option, StepInputs& inputs) const {
  inputs.accumulation_steps = option.accumulation_steps;
  inputs.recomputed_blocks = option.recomputed_blocks;
  inputs.recomputed_attentions =
      option.schedule.empty() ? option.attention_blocks : ReplayedAttentions(option.schedule);
  inputs.threads = option.threads;
  inputs.ranks = option.data_ranks() * context_.ranks;
  inputs.tokens = option.micro_batch * OwnLength();
  inputs.sharded = Sharded(option.data_ranks());
  inputs.sharers = Sharers(option.data_ranks());
}

MemoryBreakdown MeshSearch::Memory(const MemoryInputs& inputs,
                                   const PipelineSchedule& schedule) const {
  if (pipeline_ == 1) return PredictMemory(inputs);
  return PredictPipelineMemory(inputs, cut_, schedule);
}

int64_t MeshSearch::DeviceBytes(const MemoryInputs& inputs, const MemoryBreakdown& memory) const {
  if (job_.resources.device_memory_bytes == 0) return 0;
  return Offloads(job_.resources) ? TotalBytes(PredictDeviceTier(inputs))
                                  : TotalBytes(memory) - memory.runtime_bytes;
}

// Within the job's own limits and the workers'.
bool MeshSearch::Fits(const Option& option) const {
  const int64_t bytes = TotalBytes(option.memory);
  const ResourceSpec& resources = job_.resources;
  if (resources.memory_per_rank_bytes > 0 && bytes > resources.memory_per_rank_bytes) return false;
  if (resources.device_memory_bytes > 0 && option.device_bytes > resources.device_memory_bytes) {
    return false;
  }
  return workers_.HasRoom(option, bytes);
}

bool MeshSearch::FitsBeside(Option option, const MemoryInputs& inputs) const {
  const auto beside = [](MemoryBreakdown memory) {
    memory.activations_bytes = memory.workspace_bytes = 0;
    return memory;
  };
  option.memory = beside(option.memory);
  if (workers_.on_devices()) option.memory.runtime_bytes = 0;  // a part of the whole
  if (option.device_bytes > 0) option.device_bytes = TotalBytes(beside(PredictDeviceTier(inputs)));
  return Fits(option);
}

std::string MeshSearch::MemoryReason(const Option& option) const {
  const ResourceSpec& resources = job_.resources;
  if (const int64_t over = option.device_bytes - resources.device_memory_bytes; over > 0) {
    return "needs " + HumanBytes(option.device_bytes) + " on the device, " + HumanBytes(over) +
           " more than resources.device_memory_bytes allows";
  }
  const int64_t need = TotalBytes(option.memory);
  int64_t limit = workers_.LargestLimit();
  std::string whose =
      workers_.on_devices() ? "the largest GPU offers" : "the largest worker offers";
  if (const int64_t asked = resources.memory_per_rank_bytes; asked > 0 && need > asked) {
    limit = asked;
    whose = "resources.memory_per_rank_bytes allows";
  }
  std::string text = "needs " + HumanBytes(need) + " per rank";
  if (need > limit) {
    text += ", " + HumanBytes(need - limit) + " more than " + whose;
  } else {
    text += ", which leaves no room for " + std::to_string(option.ranks) + " ranks";
  }
  const MemoryComponent largest = LargestComponent(option.memory);
  return text + "; largest part: " + std::string(largest.name) + ", " + HumanBytes(largest.bytes);
}

TimeBreakdown MeshSearch::SlowestRank(
    const Option& option, const MemoryInputs& memory, const PipelineSchedule& schedule,
    const std::vector<std::pair<size_t, int64_t>>& placements) const {
  StepInputs inputs = step_;
  SetOption(option, inputs);
  if (inputs.offloads_optimizer) inputs.uploaded_weight_bytes = UploadedWeightBytes(memory);
  if (Offloads(job_.resources)) {
    inputs.streamed = StreamedWeightBytes(memory);
    inputs.activation_bytes = OffloadedActivationBytes(memory);
  }
  if (!option.schedule.empty()) {
    inputs.schedule = option.schedule;
    inputs.block = BlockBytesOf(memory);
  }
  TimeBreakdown slowest;
  for (const auto& [kind, count] : placements) {
    const RateModel& rates = workers_.rates()[kind];
    inputs.ranks_on_worker = count;
    const TimeBreakdown time = pipeline_ == 1
                                   ? PredictStep(inputs, Pass(kind, option), rates)
                                   : PredictPipelineStep(inputs,
                                                         {.stages = StagesOf(option),
                                                          .schedule = schedule,
                                                          .within_worker = count == option.ranks},
                                                         rates);
    if (StepSeconds(time) > StepSeconds(slowest)) slowest = time;
  }
  return slowest;
}

RematCosts MeshSearch::CostsOfRemat(const Option& option) const {
  const RateModel& rates = workers_.rates().front();
  const double copying = rates.MemoryBytesPerSecond(option.threads, 1);
  const TimeCalibration& calibration = rates.calibration();
  return {SecondsOfBlock(Pass(0, option), step_.shape, copying * calibration.memory_share),
          1 / TierLink(step_.host_link_bytes_per_second, copying, calibration)};
}

ModelShape ShapeOfRank(const JobSpec& job) {
  const int64_t tensor = job.resources.tensor_parallel;
  ModelShape shape = ShapeOf(job);
  if (const int64_t experts = job.resources.expert_parallel; experts > 1) {
    return ModelShape::OfExpertRank(shape.spec, experts);
  }
  if (tensor == 1) return shape;
  const double masked_share = shape.masked_share;
  shape =
      ModelShape(shape.spec, tensor, job.resources.sequence_parallel, job.resources.tensor_rows);
  shape.masked_share = masked_share;
  return shape;
}

int64_t BucketBytes(const JobSpec& job, const ModelSpec& model) {
  if (job.resources.offload_optimizer == "none") return kBucketBytes;
  return std::min(kBucketBytes, BlockGradientBytes(model));
}

}  // namespace weft::planner
