#include "coordinator/planner/mesh_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "common/model/memory_inputs.h"
#include "common/model/pipeline_shape.h"
#include "common/spec/offload.h"
#include "common/spec/shard_ranks.h"
#include "coordinator/planner/mesh_group.h"
#include "coordinator/planner/remat_choice.h"
#include "coordinator/planner/stage_cuts.h"
#include "coordinator/planner/stage_schedules.h"
#include "coordinator/planner/step_time.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

/// Accounts of memory under way: choosing what to recompute asks for some twice.
class Accounts {
 public:
  /// Sets the memory of `option`, which says what it recomputes; false where it is not known.
  bool Find(Option& option) const {
    for (const Account& known : known_) {
      if (known.blocks != option.recomputed_blocks || known.attention != option.attention_blocks) {
        continue;
      }
      option.memory = known.memory;
      option.stage_bytes = known.stage_bytes;
      return true;
    }
    return false;
  }
  void Add(const Option& option) {
    known_.push_back(
        {option.recomputed_blocks, option.attention_blocks, option.memory, option.stage_bytes});
  }

 private:
  struct Account {
    int64_t blocks;
    int64_t attention;
    MemoryBreakdown memory;
    std::vector<int64_t> stage_bytes;
  };
  std::vector<Account> known_;
};

}  // namespace

MeshSearch::MeshSearch(const JobSpec& job, const WorkerGroups& workers, const RankShare& share,
                       ScheduleCache& cache, std::vector<int64_t> cut)
    : job_(job),
      workers_(workers),
      share_(share),
      cache_(cache),
      tensor_(job.resources.tensor_parallel),
      pipeline_(job.resources.pipeline_parallel),
      memory_(MemoryInputsOfMesh(job, share.shape(),
                                 {workers.products(), workers.product_workspace_bytes()})),
      step_(StepInputsOf(job, share)),
      cut_(std::move(cut)) {
  memory_.bucket_bytes = share.bucket_bytes();
  memory_.optimizer = share.optimizer();
  const std::vector<int64_t>& kept = job.resources.device_updated_units;
  if (memory_.HasOpenGradients()) {
    memory_.open_gradients = kept.empty() ? share.OpenGradients() : share.OpenGradientsBut(kept);
  }
  if (!kept.empty()) memory_.kept = share.Kept(kept);
  // Of ranks that have whole parameters it depends on nothing else.
  SetLinkBytes(memory_, step_);
}

Option MeshSearch::OptionOf(const Candidate& candidate) const {
  Option option;
  option.on_devices = workers_.on_devices();
  option.threads = candidate.threads;
  option.ranks = candidate.ranks;
  option.tensor = tensor_;
  option.pipeline = pipeline_;
  option.context = memory_.context.ranks;
  option.experts = step_.shape.expert_ranks;
  option.ranks_per_worker = candidate.ranks_per_worker;
  option.micro_batch = candidate.micro_batch;
  option.accumulation_steps =
      job_.train.global_batch / (option.data_ranks() * candidate.micro_batch);
  if (pipeline_ > 1) option.cut = cut_;
  return option;
}

std::optional<ScheduleName> MeshSearch::NameOf(const Option& option) const {
  if (pipeline_ == 1) return std::nullopt;
  return ScheduleName{job_.resources.pipeline_schedule, pipeline_, job_.resources.pipeline_chunks,
                      option.accumulation_steps};
}

const CachedSchedule* MeshSearch::Held(const Option& option) const {
  const std::optional<ScheduleName> name = NameOf(option);
  return name ? &cache_.At(*name) : nullptr;
}

const CachedSchedule* MeshSearch::MakeHeld(const Option& option) {
  ThreadPool alone(1);
  if (const std::optional<ScheduleName> name = NameOf(option)) cache_.Add({*name}, alone);
  return Held(option);
}

std::vector<std::pair<size_t, int64_t>> MeshSearch::Placements(const Option& option) const {
  // Machines that are alike count once, except in a pipeline that others have a part of.
  if (pipeline_ == 1 || workers_.kind_count() == 1) return workers_.Placements(option);
  std::vector<std::pair<size_t, int64_t>> placements;
  const std::vector<int64_t> ranks_on = PlaceRanks(option, workers_.workers());
  for (size_t worker = 0; worker < ranks_on.size(); ++worker) {
    if (ranks_on[worker] > 0) placements.emplace_back(workers_.kinds()[worker], ranks_on[worker]);
  }
  return placements;
}

std::vector<std::vector<PipelinePlace>> MeshSearch::PlacesOf(
    const Option& option, const std::vector<std::pair<size_t, int64_t>>& placements) const {
  std::vector<std::vector<PipelinePlace>> places(static_cast<size_t>(pipeline_));
  const bool alike = workers_.kind_count() == 1;
  const int64_t replicas = option.ranks / pipeline_;
  int64_t first = 0;
  for (const auto& [kind, count] : placements) {
    const PipelinePlace place{&share_.StagePass(kind, option.threads, option.micro_batch), count};
    const int64_t last = alike ? pipeline_ - 1 : (first + count - 1) / replicas;
    for (int64_t rank = alike ? 0 : first / replicas; rank <= last; ++rank) {
      places[static_cast<size_t>(rank)].push_back(place);
    }
    first += count;
  }
  return places;
}

Option MeshSearch::FewCores(const Candidate& candidate) {
  Option option = OptionOf(candidate);
  MemoryInputs inputs = memory_;
  SetOption(option, inputs);
  std::optional<PipelineMemory> pipeline = MemoryOf(option, MakeHeld(option));
  SetMemory(inputs, pipeline, option);
  option.lacks_cores = true;
  option.infeasible_reason = std::to_string(option.ranks) + " ranks of " +
                             std::to_string(option.threads) + " threads need more " +
                             (workers_.on_devices() ? "GPUs or cores" : "cores") +
                             " than the workers offer: they have room for " +
                             std::to_string(workers_.Slots(option.threads));
  return option;
}

int64_t MeshSearch::ShardGroupSize(const Option& option) const {
  return ShardRanks(job_.resources.zero_stage, job_.resources.zero_shard_ranks,
                    option.gradient_ranks());
}

const ShardedParameters& MeshSearch::Sharded(const Option& option) const {
  return share_.Sharded(job_.resources.zero_stage, ShardGroupSize(option));
}

bool MeshSearch::Judge(const Candidate& candidate, StepBound& bound, Option& option) const {
  option = OptionOf(candidate);
  if (pipeline_ > 1 && workers_.kind_count() > 1) return JudgeMixed(option);
  return JudgeCut(Held(option), bound, option);
}

bool MeshSearch::JudgeMixed(Option& option) const {
  const CachedSchedule* held = Held(option);
  StepInputs step = step_;
  SetOption(option, step);
  std::vector<StageRank> ranks(static_cast<size_t>(pipeline_));
  const auto places = PlacesOf(option, Placements(option));
  std::map<PipelinePlace, double> pass_seconds;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const PipelinePlace& place : places[rank]) {
      const auto [seconds, added] = pass_seconds.try_emplace(place, 0);
      if (added) {
        step.ranks_on_worker = place.ranks_on_worker;
        for (const StageForecast& stage : PredictStages(step, option.cut, *place.passes)) {
          seconds->second += SecondsOfPass(stage.cost);
        }
      }
      ranks[rank].pass_seconds = std::max(ranks[rank].pass_seconds, seconds->second);
    }
  }
  StepBound none;
  if (pass_seconds.size() == 1) return JudgeCut(held, none, option);
  MemoryInputs memory = memory_;
  SetOption(option, memory);
  const std::vector<int64_t> room = workers_.RoomByPlace(option);
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].memory_bytes = room[rank];
  bool fits = false;
  const Option uncut = option;
  for (const std::vector<int64_t>& cut :
       StageCuts(job_, ranks, memory, share_.stages(), held->in_flight)) {
    Option own = uncut;
    own.cut = cut;
    const bool own_fits = JudgeCut(held, none, own);
    const bool better =
        own_fits ? !fits || StepSeconds(own.time) < StepSeconds(option.time) : !fits;
    if (better) option = std::move(own);
    fits = fits || own_fits;
  }
  return fits;
}

bool MeshSearch::JudgeCut(const CachedSchedule* held, StepBound& bound, Option& option) const {
  MemoryInputs inputs = memory_;
  SetOption(option, inputs);
  std::optional<PipelineMemory> pipeline = MemoryOf(option, held);
  if (!pipeline && Offloads(job_.resources) && std::isfinite(bound.limit)) {
    // Whatever is computed again, and of activations goes over the link, takes longer.
    option.time = SlowestOf(StepOf(option, inputs), option, Placements(option));
    bound.least_seconds = kRoundingOfBounds * StepSeconds(option.time);
    if (bound.least_seconds > bound.limit) return true;
  }
  Accounts accounts;
  // Where nothing is elsewhere, a rank without room is enough to know that it does not fit: of
  // a schedule that keeps most micro-batches on the first one, mostly that.
  const bool alone = pipeline && workers_.kind_count() == 1 && !Offloads(job_.resources) &&
                     job_.resources.device_memory_bytes == 0;
  const auto lacks_room = [&] {
    if (!alone) return false;
    option.memory = pipeline->Rank(inputs, 0);
    option.device_bytes = 0;
    return !Fits(option);
  };
  bool whole = true;  // the memory is that of all ranks
  const auto fits = [&](const RematChoice& choice) {
    inputs.recomputed_blocks = option.recomputed_blocks = choice.recomputed_blocks;
    inputs.attention_blocks = option.attention_blocks = choice.attention_blocks;
    inputs.remat = option.schedule = choice.schedule;
    whole = choice.schedule.empty() && accounts.Find(option);
    if (!whole) {
      whole = !lacks_room();
      if (!whole) return false;
      SetMemory(inputs, pipeline, option);
      if (choice.schedule.empty()) accounts.Add(option);
    }
    option.device_bytes = DeviceBytes(inputs, pipeline, option.memory);
    return Fits(option);
  };
  // A schedule takes long to find, and none helps where what it is not about has no room.
  const RematChoice least{memory_.shape.spec.layers, 0, {}};
  const bool optimal = job_.resources.recompute == "optimal";
  if (optimal && !fits(least) && !FitsBeside(option, inputs, pipeline)) return false;
  const auto choose = [&] {
    if (!optimal || !pipeline) {
      return ChooseRemat(job_.resources.recompute, inputs, CostsOfRemat(option), share_.chains(),
                         fits);
    }
    const std::optional<RematChoice> schedules = ScheduleStages(option, inputs, *held, *pipeline);
    return (schedules && fits(*schedules)) || fits(least);
  };
  if (!choose()) {
    if (!whole) SetMemory(inputs, pipeline, option);
    return false;
  }
  option.time = SlowestRank(option, inputs, held, bound, Placements(option));
  return true;
}

bool MeshSearch::Time(const std::vector<std::pair<size_t, int64_t>>& placements, Option& option) {
  if (!MeshOptions::Takes(job_, option.ranks, option.micro_batch)) return false;
  MemoryInputs inputs = memory_;
  SetOption(option, inputs);
  inputs.recomputed_blocks = option.recomputed_blocks;
  inputs.attention_blocks = option.attention_blocks;
  inputs.remat = option.schedule;
  StepBound none;
  option.time = SlowestRank(option, inputs, MakeHeld(option), none, placements);
  return true;
}

void MeshSearch::SetOption(const Option& option, MemoryInputs& inputs) const {
  inputs.micro_batch = option.micro_batch;
  inputs.accumulation_steps = option.accumulation_steps;
  inputs.ranks = option.gradient_ranks();
  inputs.threads = option.threads;
  inputs.sharded = Sharded(option);
}

void MeshSearch::SetOption(const Option& option, StepInputs& inputs) const {
  inputs.accumulation_steps = option.accumulation_steps;
  inputs.recomputed_blocks = option.recomputed_blocks;
  inputs.recomputed_attentions =
      option.schedule.empty() ? option.attention_blocks : ReplayedAttentions(option.schedule);
  inputs.threads = option.threads;
  inputs.ranks = option.gradient_ranks();
  inputs.tokens = option.micro_batch * memory_.sequence_length;
  inputs.sharded = Sharded(option);
  inputs.shard_ranks = ShardGroupSize(option);
  SetFiles(job_.resources, inputs);
}

std::optional<PipelineMemory> MeshSearch::MemoryOf(const Option& option,
                                                   const CachedSchedule* held) const {
  if (held == nullptr) return std::nullopt;
  return std::make_optional<PipelineMemory>(share_.stages(), option.cut, held->in_flight);
}

void MeshSearch::SetMemory(const MemoryInputs& inputs, std::optional<PipelineMemory>& pipeline,
                           Option& option) const {
  if (!pipeline) {
    option.memory = PredictMemory(inputs);
    return;
  }
  option.memory = {};
  option.stage_bytes.clear();
  for (const MemoryBreakdown& rank : pipeline->Ranks(inputs)) {
    if (workers_.kind_count() > 1) option.stage_bytes.push_back(TotalBytes(rank));
    if (TotalBytes(rank) > TotalBytes(option.memory)) option.memory = rank;
  }
}

int64_t MeshSearch::BytesWithoutTiers(const MemoryBreakdown& memory) const {
  // Where nothing is limited the GPU is asked for all of it.
  const bool limited = job_.resources.device_memory_bytes > 0;
  return TotalBytes(memory) - memory.snapshots_bytes - (limited ? memory.runtime_bytes : 0);
}

int64_t MeshSearch::DeviceBytes(const MemoryInputs& inputs, std::optional<PipelineMemory>& pipeline,
                                const MemoryBreakdown& memory) const {
  const bool offloads = Offloads(job_.resources);
  const bool of_gpu = workers_.on_devices() && (offloads || memory.snapshots_bytes > 0);
  if (job_.resources.device_memory_bytes == 0 && !of_gpu) return 0;
  if (!offloads) return BytesWithoutTiers(memory);
  if (!pipeline) return TotalBytes(PredictDeviceTier(inputs));
  int64_t most = 0;
  for (const MemoryBreakdown& rank : pipeline->DeviceTiers(inputs)) {
    most = std::max(most, TotalBytes(rank));
  }
  return most;
}

bool MeshSearch::WithinLimits(const Option& option) const {
  const ResourceSpec& resources = job_.resources;
  const auto within = [](int64_t bytes, int64_t most) { return most == 0 || bytes <= most; };
  return within(TotalBytes(option.memory), resources.memory_per_rank_bytes) &&
         within(option.device_bytes, resources.device_memory_bytes);
}

bool MeshSearch::Fits(const Option& option) const {
  return WithinLimits(option) && workers_.HasRoom(option, option.PlacedBytes());
}

std::optional<RematChoice> MeshSearch::ScheduleStages(const Option& option, MemoryInputs inputs,
                                                      const CachedSchedule& held,
                                                      PipelineMemory& pipeline) const {
  const bool mixed = workers_.kind_count() > 1;
  const std::vector<int64_t> room =
      mixed ? workers_.RoomByPlace(OptionOf(
                  {option.threads, option.ranks, option.ranks_per_worker, option.micro_batch}))
            : std::vector<int64_t>();
  Option alone = option;
  alone.stage_bytes.clear();
  const auto rank_fits = [&](int64_t rank, const RematChoice& choice) {
    inputs.remat = choice.schedule;
    alone.memory = pipeline.Rank(inputs, rank);
    if (option.device_bytes > 0) {
      alone.device_bytes = Offloads(job_.resources) ? TotalBytes(pipeline.DeviceTier(inputs, rank))
                                                    : BytesWithoutTiers(alone.memory);
    }
    // As if all ranks had as much; of machines of several kinds each has its own.
    return mixed ? WithinLimits(alone) && alone.PlacedBytes() <= room[static_cast<size_t>(rank)]
                 : Fits(alone);
  };
  return ChooseStageSchedules(inputs, CostsOfRemat(option), option.cut, held.in_flight, rank_fits,
                              share_.stop());
}

bool MeshSearch::FitsBeside(Option option, const MemoryInputs& inputs,
                            std::optional<PipelineMemory>& pipeline) const {
  const auto beside = [this](MemoryBreakdown memory) {
    memory.activations_bytes = memory.workspace_bytes = 0;
    if (workers_.on_devices()) memory.runtime_bytes = 0;  // a part of the whole
    return memory;
  };
  option.memory = beside(option.memory);
  if (option.device_bytes > 0) {
    std::vector<MemoryBreakdown> tiers;
    if (pipeline) tiers = pipeline->DeviceTiers(inputs);
    if (!pipeline) tiers = {PredictDeviceTier(inputs)};
    option.device_bytes = 0;
    for (const MemoryBreakdown& tier : tiers) {
      option.device_bytes = std::max(option.device_bytes, TotalBytes(beside(tier)));
    }
  }
  return Fits(option);
}

std::string MemoryReason(const ResourceSpec& resources, const WorkerGroups& workers,
                         const Option& option) {
  const int64_t over = option.device_bytes - resources.device_memory_bytes;
  if (resources.device_memory_bytes > 0 && over > 0) {
    return "needs " + HumanBytes(option.device_bytes) + " on the device, " + HumanBytes(over) +
           " more than resources.device_memory_bytes allows";
  }
  int64_t need = option.PlacedBytes();
  int64_t limit = workers.LargestLimit();
  std::string whose = workers.on_devices() ? "the largest GPU offers" : "the largest worker offers";
  const int64_t all = TotalBytes(option.memory);
  if (const int64_t asked = resources.memory_per_rank_bytes; asked > 0 && all > asked) {
    need = all;
    limit = asked;
    whose = "resources.memory_per_rank_bytes allows";
  }
  const int64_t host = workers.LargestHost();
  if (need <= limit && option.HostBytes() > host) {
    return "needs " + HumanBytes(option.HostBytes()) + " of its worker's memory, " +
           HumanBytes(option.HostBytes() - host) + " more than the largest worker offers";
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

StepInputs MeshSearch::StepOf(const Option& option, const MemoryInputs& memory) const {
  StepInputs inputs = step_;
  SetOption(option, inputs);
  if (memory.SharesParameters()) SetLinkBytes(memory, inputs);
  return inputs;
}

void MeshSearch::SetLinkBytes(const MemoryInputs& memory, StepInputs& inputs) const {
  if (inputs.offloads_optimizer) inputs.uploaded_weight_bytes = UploadedWeightBytes(memory);
  if (!Offloads(job_.resources)) return;
  inputs.streamed = StreamedWeightBytes(memory);
  inputs.resident_weight_bytes = ResidentWeightBytes(memory);
}

TimeBreakdown MeshSearch::SlowestOf(
    StepInputs inputs, const Option& option,
    const std::vector<std::pair<size_t, int64_t>>& placements) const {
  if (inputs.round_seconds > 0 && placements.size() > 1) {
    return MeanOfSpeeds(std::move(inputs), option);
  }
  TimeBreakdown slowest;
  for (const auto& [kind, count] : placements) {
    inputs.ranks_on_worker = count;
    const TimeBreakdown time = PredictStep(inputs, Pass(kind, option), workers_.rates(kind));
    if (StepSeconds(time) > StepSeconds(slowest)) slowest = time;
  }
  return slowest;
}

TimeBreakdown MeshSearch::MeanOfSpeeds(StepInputs inputs, const Option& option) const {
  TimeBreakdown mean;
  double speeds = 0;
  const std::vector<int64_t> ranks_on = PlaceRanks(option, workers_.workers());
  for (size_t worker = 0; worker < ranks_on.size(); ++worker) {
    if (ranks_on[worker] == 0) continue;
    const size_t kind = workers_.kinds()[worker];
    inputs.ranks_on_worker = ranks_on[worker];
    const TimeBreakdown time = PredictStep(inputs, Pass(kind, option), workers_.rates(kind));
    const double speed = static_cast<double>(ranks_on[worker]) / StepSeconds(time);
    speeds += speed;
    Mix(time, speed / speeds, mean);
  }
  return mean;
}

TimeBreakdown MeshSearch::SlowestRank(
    const Option& option, const MemoryInputs& memory, const CachedSchedule* held, StepBound& bound,
    const std::vector<std::pair<size_t, int64_t>>& placements) const {
  StepInputs inputs = StepOf(option, memory);
  if (Offloads(job_.resources)) inputs.activation_bytes = OffloadedActivationBytes(memory);
  if (held != nullptr && memory.offload_parameters) {
    const auto of_stages = [&](StreamedBytes (*bytes)(const MemoryInputs&)) {
      const auto of_stage = [&](const StageShape& stage) {
        MemoryInputs one = memory;
        one.shape = share_.stages().Of(stage);
        return bytes(one);
      };
      return StepInputs::StreamedStage{
          .inner = of_stage({1, false, false, {0}}),
          .first = of_stage({1, true, false, {0}}),
          .last = of_stage({1, false, true, {memory.shape.spec.layers - 1}})};
    };
    inputs.streamed_stage = of_stages(StreamedWeightBytes);
    inputs.filed_stage = of_stages(FiledWeightBytes);
  }
  inputs.compressed_bytes = CompressedActivationBytes(memory);
  if (held != nullptr && memory.activation_bits > 0) {
    MemoryInputs block = memory;
    block.shape.spec.layers = 1;
    block.recomputed_blocks = block.attention_blocks = 0;
    inputs.compressed_block.all = CompressedActivationBytes(block);
    block.attention_blocks = 1;
    inputs.compressed_block.but_attention = CompressedActivationBytes(block);
    block.attention_blocks = 0;
    block.recomputed_blocks = 1;
    inputs.compressed_block.input = CompressedActivationBytes(block);
  }
  if (!option.schedule.empty()) {
    inputs.schedule = option.schedule;
    inputs.block = BlockBytesOf(memory);
  }
  if (held != nullptr) {
    const PipelineForecast forecast =
        PredictPipeline(inputs, {.cut = option.cut,
                                 .places = PlacesOf(option, placements),
                                 .within_worker = placements.front().second == option.ranks});
    const PipelineFloor floor(forecast.costs, pipeline_, held->schedule.split_backward);
    const TimeBreakdown least = forecast.StepUntil(floor.Seconds(option.accumulation_steps));
    bound.least_seconds = kRoundingOfBounds * StepSeconds(least);
    if (bound.least_seconds > bound.limit) return least;
    return forecast.StepUntil(EndOfPipeline(held->schedule, forecast.costs));
  }
  return SlowestOf(std::move(inputs), option, placements);
}

RematCosts MeshSearch::CostsOfRemat(const Option& option) const {
  const StepRates& rates = workers_.rates(0);
  const RankPlace alone{option.threads, 1};
  return {SecondsOfBlock(Pass(0, option), step_.shape, rates.MemoryBytesPerSecond(alone)),
          1 / rates.HostLinkBytesPerSecond(alone, step_.host_link_bytes_per_second)};
}

}  // namespace weft::planner
