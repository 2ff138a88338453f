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
  /// Sets the memory of `costed`, which says what it recomputes; false where it is not known.
  bool Find(CostedPlan& costed) const {
    for (const Account& known : known_) {
      if (known.blocks != costed.recomputed_blocks || known.attention != costed.attention_blocks) {
        continue;
      }
      costed.memory = known.memory;
      costed.stage_bytes = known.stage_bytes;
      costed.learns_growth = known.learns_growth;
      return true;
    }
    return false;
  }
  void Add(const CostedPlan& costed) {
    known_.push_back({costed.recomputed_blocks, costed.attention_blocks, costed.memory,
                      costed.stage_bytes, costed.learns_growth});
  }

 private:
  struct Account {
    int64_t blocks;
    int64_t attention;
    MemoryBreakdown memory;
    std::vector<int64_t> stage_bytes;
    bool learns_growth;
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
      growth_fit_(
          GrowthFitMemory::Of(job, {workers.products(), workers.product_workspace_bytes()})),
      step_(StepInputsOf(job, share)),
      cut_(std::move(cut)) {
  memory_.bucket_bytes = share.bucket_bytes();
  memory_.optimizer = share.optimizer();
  const std::vector<int64_t>& kept = job.resources.device_updated_units;
  if (memory_.HasOpenGradients()) {
    memory_.open_gradients = kept.empty() ? share.OpenGradients() : share.OpenGradientsBut(kept);
  }
  if (!kept.empty()) memory_.kept = share.Kept(kept);
  // Where ranks have whole parameters, the bytes over the link depend on nothing else.
  SetLinkBytes(memory_, step_);
}

CostedPlan MeshSearch::CostedPlanOf(const Candidate& candidate) const {
  CostedPlan costed;
  costed.on_devices = workers_.on_devices();
  costed.threads = candidate.threads;
  costed.ranks = candidate.ranks;
  costed.tensor = tensor_;
  costed.pipeline = pipeline_;
  costed.context = memory_.context.ranks;
  costed.experts = step_.shape.expert_ranks;
  costed.ranks_per_worker = candidate.ranks_per_worker;
  costed.micro_batch = candidate.micro_batch;
  costed.accumulation_steps =
      job_.train.global_batch / (costed.data_ranks() * candidate.micro_batch);
  if (pipeline_ > 1) costed.cut = cut_;
  return costed;
}

std::optional<ScheduleName> MeshSearch::NameOf(const CostedPlan& costed) const {
  if (pipeline_ == 1) return std::nullopt;
  return ScheduleName{job_.resources.pipeline_schedule, pipeline_, job_.resources.pipeline_chunks,
                      costed.accumulation_steps};
}

const CachedSchedule* MeshSearch::Held(const CostedPlan& costed) const {
  const std::optional<ScheduleName> name = NameOf(costed);
  return name ? &cache_.At(*name) : nullptr;
}

const CachedSchedule* MeshSearch::MakeHeld(const CostedPlan& costed) {
  ThreadPool alone(1);
  if (const std::optional<ScheduleName> name = NameOf(costed)) cache_.Add({*name}, alone);
  return Held(costed);
}

std::vector<std::pair<size_t, int64_t>> MeshSearch::Placements(const CostedPlan& costed) const {
  // Machines that are alike count once, except in a pipeline that others have a part of.
  if (pipeline_ == 1 || workers_.kind_count() == 1) return workers_.Placements(costed);
  std::vector<std::pair<size_t, int64_t>> placements;
  const std::vector<int64_t> ranks_on = PlaceRanks(costed, workers_.workers());
  for (size_t worker = 0; worker < ranks_on.size(); ++worker) {
    if (ranks_on[worker] > 0) placements.emplace_back(workers_.kinds()[worker], ranks_on[worker]);
  }
  return placements;
}

std::vector<std::vector<PipelinePlace>> MeshSearch::PlacesOf(
    const CostedPlan& costed, const std::vector<std::pair<size_t, int64_t>>& placements) const {
  std::vector<std::vector<PipelinePlace>> places(static_cast<size_t>(pipeline_));
  const bool alike = workers_.kind_count() == 1;
  const int64_t replicas = costed.ranks / pipeline_;
  int64_t first = 0;
  for (const auto& [kind, count] : placements) {
    const PipelinePlace place{&share_.StagePass(kind, costed.threads, costed.micro_batch), count};
    const int64_t last = alike ? pipeline_ - 1 : (first + count - 1) / replicas;
    for (int64_t rank = alike ? 0 : first / replicas; rank <= last; ++rank) {
      places[static_cast<size_t>(rank)].push_back(place);
    }
    first += count;
  }
  return places;
}

CostedPlan MeshSearch::FewCores(const Candidate& candidate) {
  CostedPlan costed = CostedPlanOf(candidate);
  MemoryInputs inputs = memory_;
  SetCostedPlan(costed, inputs);
  std::optional<PipelineMemory> pipeline = MemoryOf(costed, MakeHeld(costed));
  SetMemory(inputs, pipeline, costed);
  costed.lacks_cores = true;
  costed.infeasible_reason = std::to_string(costed.ranks) + " ranks of " +
                             std::to_string(costed.threads) + " threads need more " +
                             (workers_.on_devices() ? "GPUs or cores" : "cores") +
                             " than the workers offer: they have room for " +
                             std::to_string(workers_.Slots(costed.threads));
  return costed;
}

int64_t MeshSearch::ShardGroupSize(const CostedPlan& costed) const {
  return ShardRanks(job_.resources.zero_stage, job_.resources.zero_shard_ranks,
                    costed.gradient_ranks());
}

const ShardedParameters& MeshSearch::Sharded(const CostedPlan& costed) const {
  return share_.Sharded(job_.resources.zero_stage, ShardGroupSize(costed));
}

bool MeshSearch::Judge(const Candidate& candidate, StepBound& bound, CostedPlan& costed) const {
  costed = CostedPlanOf(candidate);
  if (pipeline_ > 1 && workers_.kind_count() > 1) return JudgeMixed(costed);
  return JudgeCut(Held(costed), bound, costed);
}

bool MeshSearch::JudgeMixed(CostedPlan& costed) const {
  const CachedSchedule* held = Held(costed);
  StepInputs step = step_;
  SetCostedPlan(costed, step);
  std::vector<StageRank> ranks(static_cast<size_t>(pipeline_));
  const auto places = PlacesOf(costed, Placements(costed));
  std::map<PipelinePlace, double> pass_seconds;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const PipelinePlace& place : places[rank]) {
      const auto [seconds, added] = pass_seconds.try_emplace(place, 0);
      if (added) {
        step.ranks_on_worker = place.ranks_on_worker;
        for (const StageForecast& stage : PredictStages(step, costed.cut, *place.passes)) {
          seconds->second += SecondsOfPass(stage.cost);
        }
      }
      ranks[rank].pass_seconds = std::max(ranks[rank].pass_seconds, seconds->second);
    }
  }
  StepBound none;
  if (pass_seconds.size() == 1) return JudgeCut(held, none, costed);
  MemoryInputs memory = memory_;
  SetCostedPlan(costed, memory);
  const std::vector<int64_t> room = workers_.RoomByPlace(costed);
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].memory_bytes = room[rank];
  bool fits = false;
  const CostedPlan uncut = costed;
  for (const std::vector<int64_t>& cut :
       StageCuts(job_, ranks, memory, share_.stages(), held->in_flight)) {
    CostedPlan own = uncut;
    own.cut = cut;
    const bool own_fits = JudgeCut(held, none, own);
    const bool better =
        own_fits ? !fits || StepSeconds(own.time) < StepSeconds(costed.time) : !fits;
    if (better) costed = std::move(own);
    fits = fits || own_fits;
  }
  return fits;
}

bool MeshSearch::JudgeCut(const CachedSchedule* held, StepBound& bound, CostedPlan& costed) const {
  MemoryInputs inputs = memory_;
  SetCostedPlan(costed, inputs);
  std::optional<PipelineMemory> pipeline = MemoryOf(costed, held);
  if (!pipeline && Offloads(job_.resources) && std::isfinite(bound.limit)) {
    // Whatever is computed again, and of activations goes over the link, takes longer. Ranks may
    // get other machines once their memory is known.
    StepInputs step = StepOf(costed, inputs);
    step.links = nullptr;
    costed.time = SlowestOf(std::move(step), costed, Placements(costed));
    bound.least_seconds = kRoundingOfBounds * StepSeconds(costed.time);
    if (bound.least_seconds > bound.limit) return true;
  }
  Accounts accounts;
  // Where nothing is elsewhere, a rank without room is enough to know that it does not fit: of
  // a schedule that keeps most micro-batches on the first one, mostly that.
  const bool alone = pipeline && workers_.kind_count() == 1 && !Offloads(job_.resources) &&
                     job_.resources.device_memory_bytes == 0;
  const auto lacks_room = [&] {
    if (!alone) return false;
    costed.memory = pipeline->Rank(inputs, 0);
    costed.device_bytes = 0;
    return !Fits(costed);
  };
  bool whole = true;  // the memory is that of all ranks
  const auto fits = [&](const RematChoice& choice) {
    inputs.recomputed_blocks = costed.recomputed_blocks = choice.recomputed_blocks;
    inputs.attention_blocks = costed.attention_blocks = choice.attention_blocks;
    inputs.remat = costed.schedule = choice.schedule;
    whole = choice.schedule.empty() && accounts.Find(costed);
    if (!whole) {
      whole = !lacks_room();
      if (!whole) return false;
      SetMemory(inputs, pipeline, costed);
      if (choice.schedule.empty()) accounts.Add(costed);
    }
    costed.device_bytes = DeviceBytes(inputs, pipeline, costed.memory);
    return Fits(costed);
  };
  // A schedule takes long to find, and none helps where what it is not about has no room.
  const RematChoice least{memory_.shape.spec.layers, 0, {}};
  const bool optimal = job_.resources.recompute == "optimal";
  if (optimal && !fits(least) && !FitsWithInputs(costed, inputs, pipeline)) return false;
  const auto choose = [&] {
    if (!optimal || !pipeline) {
      return ChooseRemat(job_.resources.recompute, inputs, CostsOfRemat(costed), share_.chains(),
                         fits);
    }
    const std::optional<RematChoice> schedules = ScheduleStages(costed, inputs, *held, *pipeline);
    return (schedules && fits(*schedules)) || fits(least);
  };
  if (!choose()) {
    if (!whole) SetMemory(inputs, pipeline, costed);
    return false;
  }
  costed.time = SlowestRank(costed, inputs, held, bound, Placements(costed));
  return true;
}

bool MeshSearch::Time(const std::vector<std::pair<size_t, int64_t>>& placements,
                      CostedPlan& costed) {
  if (!MeshOptions::Takes(job_, costed.ranks, costed.micro_batch)) return false;
  MemoryInputs inputs = memory_;
  SetCostedPlan(costed, inputs);
  inputs.recomputed_blocks = costed.recomputed_blocks;
  inputs.attention_blocks = costed.attention_blocks;
  inputs.remat = costed.schedule;
  StepBound none;
  costed.time = SlowestRank(costed, inputs, MakeHeld(costed), none, placements);
  return true;
}

void MeshSearch::SetCostedPlan(const CostedPlan& costed, MemoryInputs& inputs) const {
  inputs.micro_batch = costed.micro_batch;
  inputs.accumulation_steps = costed.accumulation_steps;
  inputs.ranks = costed.gradient_ranks();
  inputs.threads = costed.threads;
  inputs.sharded = Sharded(costed);
}

void MeshSearch::SetCostedPlan(const CostedPlan& costed, StepInputs& inputs) const {
  inputs.accumulation_steps = costed.accumulation_steps;
  inputs.recomputed_blocks = costed.recomputed_blocks;
  inputs.recomputed_attentions =
      costed.schedule.empty() ? costed.attention_blocks : ReplayedAttentions(costed.schedule);
  inputs.threads = costed.threads;
  inputs.ranks = costed.gradient_ranks();
  inputs.tokens = costed.micro_batch * memory_.sequence_length;
  inputs.sharded = Sharded(costed);
  inputs.shard_ranks = ShardGroupSize(costed);
  inputs.spans_racks = workers_.SpansRacks(costed);
  inputs.links = workers_.LinksOf(costed);
  SetFiles(job_.resources, inputs);
}

std::optional<PipelineMemory> MeshSearch::MemoryOf(const CostedPlan& costed,
                                                   const CachedSchedule* held) const {
  if (held == nullptr) return std::nullopt;
  return std::make_optional<PipelineMemory>(share_.stages(), costed.cut, held->in_flight);
}

void MeshSearch::SetMemory(const MemoryInputs& inputs, std::optional<PipelineMemory>& pipeline,
                           CostedPlan& costed) const {
  SetMemoryOfSteps(inputs, pipeline, costed);
  costed.learns_growth = false;
  if (!growth_fit_) return;
  // Next to the model of the phase, before its first step.
  const MemoryBreakdown& steps = costed.memory;
  const int64_t more_before =
      growth_fit_->host_bytes() - steps.activations_bytes - steps.workspace_bytes;
  costed.memory.workspace_bytes += std::max<int64_t>(more_before, 0);
  const MemoryBreakdown fit = growth_fit_->Of(inputs);
  if (workers_.on_devices() && Offloads(job_.resources)) {
    // The GPU has its most then, the host in the steps.
    const int64_t more = TotalBytes(fit) - TotalBytes(DeviceTier(inputs, pipeline));
    costed.learns_growth = more > 0;
    costed.memory.parameters_bytes += std::max<int64_t>(more, 0);
  } else {
    costed.learns_growth = TotalBytes(fit) > TotalBytes(costed.memory);
    if (costed.learns_growth) costed.memory = fit;
  }
  for (int64_t& bytes : costed.stage_bytes) bytes = std::max(bytes, TotalBytes(fit));
}

void MeshSearch::SetMemoryOfSteps(const MemoryInputs& inputs,
                                  std::optional<PipelineMemory>& pipeline,
                                  CostedPlan& costed) const {
  if (!pipeline) {
    costed.memory = PredictMemory(inputs);
    return;
  }
  costed.stage_bytes.clear();
  if (workers_.kind_count() == 1) {
    costed.memory = pipeline->Fullest(inputs);
    return;
  }
  costed.memory = {};
  for (const MemoryBreakdown& rank : pipeline->Ranks(inputs)) {
    costed.stage_bytes.push_back(TotalBytes(rank));
    if (TotalBytes(rank) > TotalBytes(costed.memory)) costed.memory = rank;
  }
}

MemoryBreakdown MeshSearch::DeviceTier(const MemoryInputs& inputs,
                                       std::optional<PipelineMemory>& pipeline) {
  return pipeline ? pipeline->FullestDeviceTier(inputs) : PredictDeviceTier(inputs);
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
  const int64_t of_steps = TotalBytes(DeviceTier(inputs, pipeline));
  if (!growth_fit_) return of_steps;
  return std::max(of_steps, BytesWithoutTiers(growth_fit_->Of(inputs)));
}

bool MeshSearch::WithinLimits(const CostedPlan& costed) const {
  const ResourceSpec& resources = job_.resources;
  const auto within = [](int64_t bytes, int64_t most) { return most == 0 || bytes <= most; };
  return within(TotalBytes(costed.memory), resources.memory_per_rank_bytes) &&
         within(costed.device_bytes, resources.device_memory_bytes);
}

bool MeshSearch::Fits(const CostedPlan& costed) const {
  return WithinLimits(costed) && workers_.HasRoom(costed, costed.PlacedBytes());
}

std::optional<RematChoice> MeshSearch::ScheduleStages(const CostedPlan& costed, MemoryInputs inputs,
                                                      const CachedSchedule& held,
                                                      PipelineMemory& pipeline) const {
  const bool mixed = workers_.kind_count() > 1;
  const std::vector<int64_t> room =
      mixed ? workers_.RoomByPlace(CostedPlanOf(
                  {costed.threads, costed.ranks, costed.ranks_per_worker, costed.micro_batch}))
            : std::vector<int64_t>();
  CostedPlan alone = costed;
  alone.stage_bytes.clear();
  const auto rank_fits = [&](int64_t rank, const RematChoice& choice) {
    inputs.remat = choice.schedule;
    alone.memory = pipeline.Rank(inputs, rank);
    if (costed.device_bytes > 0) {
      alone.device_bytes = Offloads(job_.resources) ? TotalBytes(pipeline.DeviceTier(inputs, rank))
                                                    : BytesWithoutTiers(alone.memory);
    }
    // As if all ranks had as much; of machines of several kinds each has its own.
    return mixed ? WithinLimits(alone) && alone.PlacedBytes() <= room[static_cast<size_t>(rank)]
                 : Fits(alone);
  };
  return ChooseStageSchedules(inputs, CostsOfRemat(costed), costed.cut, held.in_flight, rank_fits,
                              share_.stop());
}

bool MeshSearch::FitsWithInputs(CostedPlan costed, const MemoryInputs& inputs,
                                std::optional<PipelineMemory>& pipeline) const {
  const auto beside = [this](MemoryBreakdown memory) {
    memory.activations_bytes = memory.workspace_bytes = 0;
    if (workers_.on_devices()) memory.runtime_bytes = 0;  // a part of the whole
    return memory;
  };
  costed.memory = beside(costed.memory);
  if (costed.device_bytes > 0) {
    std::vector<MemoryBreakdown> tiers;
    if (pipeline) tiers = pipeline->DeviceTiers(inputs);
    if (!pipeline) tiers = {PredictDeviceTier(inputs)};
    costed.device_bytes = 0;
    for (const MemoryBreakdown& tier : tiers) {
      costed.device_bytes = std::max(costed.device_bytes, TotalBytes(beside(tier)));
    }
  }
  return Fits(costed);
}

std::string MemoryReason(const ResourceSpec& resources, const WorkerGroups& workers,
                         const CostedPlan& costed) {
  const int64_t over = costed.device_bytes - resources.device_memory_bytes;
  const char* const of_growth =
      costed.learns_growth ? " to learn the growth operator with the whole model" : "";
  if (resources.device_memory_bytes > 0 && over > 0) {
    return "needs " + HumanBytes(costed.device_bytes) + " on the device" + of_growth + ", " +
           HumanBytes(over) + " more than resources.device_memory_bytes allows";
  }
  int64_t need = costed.PlacedBytes();
  int64_t limit = workers.LargestLimit();
  std::string whose = workers.on_devices() ? "the largest GPU offers" : "the largest worker offers";
  const int64_t all = TotalBytes(costed.memory);
  if (const int64_t asked = resources.memory_per_rank_bytes; asked > 0 && all > asked) {
    need = all;
    limit = asked;
    whose = "resources.memory_per_rank_bytes allows";
  }
  const int64_t host = workers.LargestHost();
  if (need <= limit && costed.HostBytes() > host) {
    return "needs " + HumanBytes(costed.HostBytes()) + " of its worker's memory, " +
           HumanBytes(costed.HostBytes() - host) + " more than the largest worker offers";
  }
  std::string text = "needs " + HumanBytes(need) + " per rank" + of_growth;
  if (need > limit) {
    text += ", " + HumanBytes(need - limit) + " more than " + whose;
  } else {
    text += ", which leaves no room for " + std::to_string(costed.ranks) + " ranks";
  }
  const MemoryComponent largest = LargestComponent(costed.memory);
  return text + "; largest part: " + std::string(largest.name) + ", " + HumanBytes(largest.bytes);
}

StepInputs MeshSearch::StepOf(const CostedPlan& costed, const MemoryInputs& memory) const {
  StepInputs inputs = step_;
  SetCostedPlan(costed, inputs);
  if (memory.SharesParameters()) SetLinkBytes(memory, inputs);
  return inputs;
}

void MeshSearch::SetLinkBytes(const MemoryInputs& memory, StepInputs& inputs) const {
  if (inputs.offloads_optimizer) inputs.uploaded_weight_bytes = UploadedWeightBytes(memory);
  inputs.uploads_at_once = memory.technique_products.uploads_at_once;
  if (!Offloads(job_.resources)) return;
  inputs.streamed = StreamedWeightBytes(memory);
  inputs.resident_weight_bytes = ResidentWeightBytes(memory);
}

TimeBreakdown MeshSearch::SlowestOf(
    StepInputs inputs, const CostedPlan& costed,
    const std::vector<std::pair<size_t, int64_t>>& placements) const {
  if (inputs.round_seconds > 0 && placements.size() > 1) {
    return MeanOfSpeeds(std::move(inputs), costed);
  }
  TimeBreakdown slowest;
  for (const auto& [kind, count] : placements) {
    inputs.ranks_on_worker = count;
    const TimeBreakdown time = PredictStep(inputs, Pass(kind, costed), workers_.rates(kind));
    if (StepSeconds(time) > StepSeconds(slowest)) slowest = time;
  }
  return slowest;
}

TimeBreakdown MeshSearch::MeanOfSpeeds(StepInputs inputs, const CostedPlan& costed) const {
  TimeBreakdown mean;
  double speeds = 0;
  const std::vector<int64_t> ranks_on = PlaceRanks(costed, workers_.workers());
  for (size_t worker = 0; worker < ranks_on.size(); ++worker) {
    if (ranks_on[worker] == 0) continue;
    const size_t kind = workers_.kinds()[worker];
    inputs.ranks_on_worker = ranks_on[worker];
    const TimeBreakdown time = PredictStep(inputs, Pass(kind, costed), workers_.rates(kind));
    const double speed = static_cast<double>(ranks_on[worker]) / StepSeconds(time);
    speeds += speed;
    Mix(time, speed / speeds, mean);
  }
  return mean;
}

TimeBreakdown MeshSearch::SlowestRank(
    const CostedPlan& costed, const MemoryInputs& memory, const CachedSchedule* held,
    StepBound& bound, const std::vector<std::pair<size_t, int64_t>>& placements) const {
  StepInputs inputs = StepOf(costed, memory);
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
  if (!costed.schedule.empty()) {
    inputs.schedule = costed.schedule;
    inputs.block = BlockBytesOf(memory);
  }
  if (held != nullptr) {
    const PipelineForecast forecast =
        PredictPipeline(inputs, {.cut = costed.cut,
                                 .places = PlacesOf(costed, placements),
                                 .within_worker = placements.front().second == costed.ranks});
    const PipelineFloor floor(forecast.costs, pipeline_, held->schedule.split_backward);
    const TimeBreakdown least = forecast.StepUntil(floor.Seconds(costed.accumulation_steps));
    bound.least_seconds = kRoundingOfBounds * StepSeconds(least);
    if (bound.least_seconds > bound.limit) return least;
    return forecast.StepUntil(EndOfPipeline(held->schedule, forecast.costs));
  }
  return SlowestOf(std::move(inputs), costed, placements);
}

RematCosts MeshSearch::CostsOfRemat(const CostedPlan& costed) const {
  const StepRates& rates = workers_.rates(0);
  const RankPlace alone{costed.threads, 1};
  return {SecondsOfBlock(Pass(0, costed), step_.shape, rates.MemoryBytesPerSecond(alone)),
          1 / rates.HostLinkBytesPerSecond(alone, step_.host_link_bytes_per_second)};
}

}  // namespace weft::planner
