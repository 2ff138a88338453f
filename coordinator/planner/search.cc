#include "coordinator/planner/search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "common/model/device_order.h"
#include "common/model/gradient_bytes.h"
#include "common/model/pipeline_shape.h"
#include "common/pipeline/named_schedule.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/offload.h"
#include "common/spec/pipeline_parallel.h"
#include "common/spec/shard_ranks.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/remat_choice.h"
#include "coordinator/planner/time_model.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

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

/// How many of `left` ranks of `bytes` go on `worker`.
int64_t RanksOn(const WorkerProfile& worker, const Option& option, int64_t bytes, int64_t left) {
  const int64_t held = option.on_devices ? UsableDevices(worker.devices, bytes)
                                         : worker.memory_limit_bytes / std::max<int64_t>(bytes, 1);
  return std::min({left, option.ranks_per_worker, worker.cores / option.threads, held});
}

/// Threads that a rank on a GPU has for its data and its checkpoints; more do nothing.
constexpr int64_t kMostThreadsOfDevice = 8;

constexpr int64_t kMostTokens = int64_t{1} << 20;

class Searcher {
 public:
  Searcher(const JobSpec& job, const ClusterProfile& cluster, FastestSteps* fastest)
      : job_(job),
        fastest_(fastest),
        on_devices_(WantsDevices(job, cluster)),
        tensor_(job.resources.tensor_parallel),
        pipeline_(job.resources.pipeline_parallel),
        context_{job.resources.context_parallel, job.resources.context_method == "ulysses"},
        cut_(CutOf(job)),
        shape_(ShapeOfRank(job)),
        precision_(PrecisionOf(job.train.precision)),
        optimizer_(OptimizerOfRank(job, shape_, precision_)),
        open_gradients_(job.resources.zero_stage == 2 || offloads_optimizer()
                            ? OpenGradientBytes(shape_.spec, BucketBytes(job, shape_.spec), tensor_,
                                                job.resources.tensor_rows)
                            : 0) {
    for (const WorkerProfile& worker : cluster.workers) {
      if (!on_devices_ || UsableDevices(worker.devices) > 0) workers_.push_back(&worker);
    }
    // The largest first, so that few machines do the work; equals by name.
    std::sort(workers_.begin(), workers_.end(), [&](const auto* a, const auto* b) {
      const int64_t devices_a = Devices(*a), devices_b = Devices(*b);
      return std::tie(devices_b, b->cores, b->memory_limit_bytes, a->worker_id) <
             std::tie(devices_a, a->cores, a->memory_limit_bytes, b->worker_id);
    });
    FindKinds();
  }

  SearchResult Run() {
    if (workers_.empty()) return std::move(result_);
    for (int64_t threads : ThreadChoices()) {
      for (int64_t ranks : RankChoices(threads)) {
        for (int64_t spread : SpreadChoices(ranks, threads)) {
          for (int64_t micro : MicroBatchChoices(ranks / replica())) {
            Try(threads, ranks, spread, micro);
          }
        }
      }
    }
    // Only the heads of the lists are shown.
    const auto sort_head = [](std::vector<Option>& options, auto before) {
      const auto head = options.begin() + static_cast<int64_t>(std::min(options.size(), kSorted));
      std::partial_sort(options.begin(), head, options.end(), before);
    };
    sort_head(result_.fitting, Better);
    sort_head(result_.misfitting, [](const Option& a, const Option& b) {
      const int64_t bytes_a = TotalBytes(a.memory), bytes_b = TotalBytes(b.memory);
      return std::tie(bytes_a, a.ranks, a.threads, a.micro_batch, a.ranks_per_worker) <
             std::tie(bytes_b, b.ranks, b.threads, b.micro_batch, b.ranks_per_worker);
    });
    result_.workers = workers_;
    result_.kinds = kind_;
    if (const DeviceModel* device = rates_.front().device()) result_.times_from = device->Source();
    return std::move(result_);
  }

 private:
  /// Ranks that see the same sequences.
  int64_t replica() const { return tensor_ * pipeline_ * context_.ranks; }

  /// Of each sequence, tokens that a rank has.
  int64_t OwnLength() const { return SequenceLength(job_) / context_.ranks; }

  bool offloads_optimizer() const { return job_.resources.offload_optimizer != "none"; }

  /// Of a job that CutModel accepts.
  static std::vector<int64_t> CutOf(const JobSpec& job) {
    const Result<std::vector<int64_t>> cut = CutModel(job);
    WEFT_CHECK(cut.ok(), cut.status().message());
    return *cut;
  }

  /// The steps of the pipeline with so many micro-batches; null where there can be none.
  const PipelineSchedule* ScheduleOf(int64_t micro_batches) {
    auto [it, added] = schedules_.try_emplace(micro_batches);
    if (added) {
      const ResourceSpec& resources = job_.resources;
      Result<PipelineSchedule> schedule = NamedSchedule(resources.pipeline_schedule, pipeline_,
                                                        resources.pipeline_chunks, micro_batches);
      const bool every_step = CheckPipelineParallel(job_, pipeline_, resources.pipeline_schedule,
                                                    resources.pipeline_chunks, micro_batches)
                                  .ok();
      if (schedule.ok() && every_step) it->second = *std::move(schedule);
    }
    return it->second.steps.empty() ? nullptr : &it->second;
  }

  /// Ranks that share matrices, or experts, update their parts of them.
  static OptimizerBytes OptimizerOfRank(const JobSpec& job, const ModelShape& shape,
                                        const PrecisionRecipe& precision) {
    OptimizerBytes bytes =
        OptimizerBytesOf(shape.spec, job, precision.products, shape.expert_ranks);
    if (shape.tensor == 1) return bytes;
    const double part = static_cast<double>(shape.Updated()) /
                        static_cast<double>(ModelShape(shape.spec).Updated());
    bytes.state = static_cast<int64_t>(part * static_cast<double>(bytes.state));
    return bytes;
  }

  /// GPUs that count; 0 on CPUs.
  int64_t Devices(const WorkerProfile& worker) const {
    return on_devices_ ? UsableDevices(worker.devices) : 0;
  }

  /// Ranks of `threads` for which a worker has cores and GPUs.
  int64_t Room(const WorkerProfile& worker, int64_t threads) const {
    const int64_t room = worker.cores / threads;
    return on_devices_ ? std::min(room, Devices(worker)) : room;
  }

  /// Faster; then fewer ranks, less recomputation, less memory, fewer threads.
  static bool Better(const Option& a, const Option& b) {
    const double time_a = StepSeconds(a.time), time_b = StepSeconds(b.time);
    const int64_t bytes_a = TotalBytes(a.memory), bytes_b = TotalBytes(b.memory);
    return std::tie(time_a, a.ranks, a.recomputed_blocks, bytes_a, a.threads, a.micro_batch) <
           std::tie(time_b, b.ranks, b.recomputed_blocks, bytes_b, b.threads, b.micro_batch);
  }

  /// Workers that measured the same share predictions.
  void FindKinds() {
    std::vector<WorkerProfile> kinds;
    for (size_t w = 0; w < workers_.size(); ++w) {
      WorkerProfile measured = *workers_[w];
      measured.worker_id.clear();
      measured.host.clear();
      for (DeviceSpec& device : measured.devices) device.uuid.clear();
      const auto found = std::find(kinds.begin(), kinds.end(), measured);
      const auto kind = static_cast<size_t>(found - kinds.begin());
      if (w > 0 && kind == kind_.back()) {
        ++alike_.back().count;
      } else {
        alike_.push_back({w, 1});
      }
      kind_.push_back(kind);
      if (found != kinds.end()) continue;
      kinds.push_back(std::move(measured));
      const WorkerProfile& worker = *workers_[w];
      for (const DeviceSpec& device : worker.devices) {
        if (!on_devices_ || !device.unusable.empty()) continue;
        product_workspace_ =
            std::max(product_workspace_, ProductWorkspaceBytes(device.compute_capability));
      }
      rates_.emplace_back(worker, precision_.products, on_devices_);
      const ProductKind products =
          on_devices_ ? ProductKind::kStored : RateModel::ProductsOf(worker, precision_.products);
      products_ = rates_.size() == 1 ? products : Fuller(products_, products);
    }
  }

  /// Every way to cut some worker's cores into equal parts.
  std::set<int64_t> ThreadChoices() const {
    if (job_.resources.threads_per_rank > 0) return {job_.resources.threads_per_rank};
    std::set<int64_t> choices;
    for (const Alike& alike : alike_) {
      const WorkerProfile* worker = workers_[alike.first];
      if (on_devices_) {
        choices.insert(
            std::clamp<int64_t>(worker->cores / Devices(*worker), 1, kMostThreadsOfDevice));
        continue;
      }
      // Skips the numbers of parts that give the same threads.
      for (int64_t parts = 1; parts <= worker->cores;
           parts = worker->cores / (worker->cores / parts) + 1) {
        choices.insert(worker->cores / parts);
      }
    }
    return choices;
  }

  int64_t Slots(int64_t threads) const {
    int64_t slots = 0;
    for (const Alike& alike : alike_) slots += alike.count * Room(*workers_[alike.first], threads);
    return slots;
  }

  std::vector<int64_t> RankChoices(int64_t threads) const {
    if (job_.resources.ranks > 0) return {job_.resources.ranks};
    if (Offloads(job_.resources) && job_.train.local_steps == 1) return {1};
    std::vector<int64_t> choices;
    for (int64_t data : Divisors(BatchSchedule(job_.train).unit())) {
      if (data % shape_.expert_ranks != 0) continue;
      const int64_t ranks = data * replica();
      if (data > 1 && data % std::max<int64_t>(job_.resources.zero_shard_ranks, 1) != 0) continue;
      if (ranks <= std::max<int64_t>(Slots(threads), 1)) choices.push_back(ranks);
    }
    // The fastest are likely among the largest, and leave out many others.
    if (fastest_ != nullptr) std::reverse(choices.begin(), choices.end());
    return choices;
  }

  /// On all workers, on all but one, ..., on one.
  std::set<int64_t> SpreadChoices(int64_t ranks, int64_t threads) const {
    const int64_t most = std::max<int64_t>(Room(*workers_[0], threads), 1);
    std::set<int64_t> choices;
    for (size_t used = 1; used <= workers_.size(); ++used) {
      const auto count = static_cast<int64_t>(used);
      choices.insert(std::min((ranks + count - 1) / count, most));
    }
    return choices;
  }

  std::vector<int64_t> MicroBatchChoices(int64_t ranks) const {
    if (job_.resources.micro_batch > 0) return {job_.resources.micro_batch};
    std::vector<int64_t> choices = Divisors(BatchSchedule(job_.train).unit() / ranks);
    // The noise scale compares a part of the batch with the whole.
    if (job_.train.gradient_noise_scale && ranks == 1 && choices.size() > 1 &&
        choices.back() == job_.train.global_batch) {
      choices.pop_back();
    }
    // Past a million tokens a pass nothing gets faster, and the arithmetic of
    // bytes stays in range.
    while (choices.size() > 1 && choices.back() * SequenceLength(job_) > kMostTokens) {
      choices.pop_back();
    }
    return choices;
  }

  /// Of so many data-parallel ranks; nothing where they do not share out parameters.
  const ShardedParameters& Sharded(int64_t ranks) {
    const ResourceSpec& resources = job_.resources;
    const int64_t sharers = ShardRanks(resources.zero_stage, resources.zero_shard_ranks, ranks);
    auto [it, added] = sharded_.try_emplace(sharers);
    if (added && resources.zero_stage > 2 && sharers > 1) {
      it->second =
          ShardParameters(shape_.spec, precision_, sharers, tensor_, resources.tensor_rows);
    }
    return it->second;
  }

  MemoryInputs MemoryOf(const Option& option) {
    MemoryInputs inputs;
    inputs.shape = shape_;
    inputs.micro_batch = option.micro_batch;
    inputs.sequence_length = OwnLength();
    inputs.context = context_;
    inputs.accumulation_steps = option.accumulation_steps;
    inputs.ranks = option.data_ranks() * context_.ranks;
    inputs.zero_stage = job_.resources.zero_stage;
    inputs.zero_shard_ranks = job_.resources.zero_shard_ranks;
    inputs.threads = option.threads;
    inputs.bucket_bytes = BucketBytes(job_, shape_.spec);
    inputs.precision = &precision_;
    inputs.products = products_;
    inputs.product_workspace_bytes = product_workspace_;
    inputs.fp8 = job_.train.fp8;
    inputs.optimizer = optimizer_;
    inputs.open_gradients = open_gradients_;
    inputs.sharded = Sharded(option.data_ranks());
    inputs.offload_optimizer = offloads_optimizer();
    inputs.offload_activations = job_.resources.offload_activations != "none";
    inputs.offload_parameters = job_.resources.offload_parameters != "none";
    inputs.delayed_update = job_.resources.delayed_update;
    inputs.recomputed_blocks = option.recomputed_blocks;
    inputs.attention_blocks = option.attention_blocks;
    inputs.recompute_segment = job_.resources.recompute_segment;
    inputs.remat = option.schedule;
    inputs.activation_bits = job_.resources.activation_bits;
    return inputs;
  }

  MemoryBreakdown Memory(const Option& option) {
    const MemoryInputs inputs = MemoryOf(option);
    if (pipeline_ == 1) return PredictMemory(inputs);
    return PredictPipelineMemory(inputs, cut_, *ScheduleOf(option.accumulation_steps));
  }

  /// Whether the option as it stands has room, within the job's own limit and
  /// the workers'.
  bool Fits(const Option& option) const {
    const int64_t bytes = TotalBytes(option.memory);
    const int64_t limit = job_.resources.memory_per_rank_bytes;
    if (limit > 0 && bytes > limit) return false;
    if (OverDevice(option) > 0) return false;
    int64_t left = option.ranks;
    for (const Alike& alike : alike_) {
      const int64_t each = RanksOn(*workers_[alike.first], option, bytes, left);
      left -= std::min(left, alike.count * each);
    }
    return left == 0;
  }

  /// PlaceRanks, without repetitions: a worker, and how many ranks are on it and those like it.
  std::vector<std::pair<size_t, int64_t>> Placements(const Option& option) const {
    std::vector<std::pair<size_t, int64_t>> placements;
    int64_t left = option.ranks;
    for (const Alike& alike : alike_) {
      const int64_t each = RanksOn(*workers_[alike.first], option, TotalBytes(option.memory), left);
      if (each == 0) continue;
      const int64_t full = std::min(alike.count, left / each);
      placements.emplace_back(alike.first, each);
      left -= full * each;
      if (full == alike.count || left == 0) continue;
      placements.emplace_back(alike.first, left);
      left = 0;
    }
    return placements;
  }

  /// Bytes too many for the device tier.
  int64_t OverDevice(const Option& option) const {
    const int64_t limit = job_.resources.device_memory_bytes;
    return limit == 0 ? 0 : std::max<int64_t>(option.device_bytes - limit, 0);
  }

  void Try(int64_t threads, int64_t ranks, int64_t spread, int64_t micro) {
    if (micro * SequenceLength(job_) > kMostTokens * 64) return;  // only when the job asks for it
    Option option;
    option.on_devices = on_devices_;
    option.threads = threads;
    option.ranks = ranks;
    option.tensor = tensor_;
    option.pipeline = pipeline_;
    option.context = context_.ranks;
    option.experts = shape_.expert_ranks;
    option.ranks_per_worker = spread;
    option.micro_batch = micro;
    option.accumulation_steps = job_.train.global_batch / (option.data_ranks() * micro);
    // Past so many micro-batches a pipeline has no bubble to speak of.
    constexpr int64_t kMostMicroBatches = 1024;
    if (pipeline_ > 1 && (option.accumulation_steps > kMostMicroBatches ||
                          ScheduleOf(option.accumulation_steps) == nullptr)) {
      return;
    }
    if (!HasCores(option)) {
      ReportFewCores(std::move(option));
      return;
    }
    ++result_.considered;
    if (fastest_ != nullptr && LeastSeconds(option) > fastest_->Limit()) return;
    const auto fits = [&](const RematChoice& choice) {
      option.recomputed_blocks = choice.recomputed_blocks;
      option.attention_blocks = choice.attention_blocks;
      option.schedule = choice.schedule;
      option.memory = Memory(option);
      if (job_.resources.device_memory_bytes > 0) {
        option.device_bytes = Offloads(job_.resources)
                                  ? TotalBytes(PredictDeviceTier(MemoryOf(option)))
                                  : TotalBytes(option.memory) - option.memory.runtime_bytes;
      }
      return Fits(option);
    };
    const RematCosts costs = CostsOfRemat(Pass(0, option));
    if (!ChooseRemat(job_.resources.recompute, MemoryOf(option), costs, pipeline_ == 1, fits)) {
      option.misfit = MemoryReason(option);
      result_.misfitting.push_back(std::move(option));
      return;
    }
    option.time = SlowestRank(option);
    if (fastest_ != nullptr) fastest_->Add(StepSeconds(option.time));
    result_.fitting.push_back(std::move(option));
  }

  /// Products of a step on the fastest kind of worker, shared out evenly among the stages.
  double LeastSeconds(const Option& option) {
    double least = std::numeric_limits<double>::infinity();
    for (size_t kind = 0; kind < rates_.size(); ++kind) {
      least = std::min(least, Pass(kind, option).gemm_seconds);
    }
    constexpr double kRounding = 1 - 1e-9;
    return kRounding * least * static_cast<double>(option.accumulation_steps) /
           static_cast<double>(pipeline_);
  }

  bool HasCores(const Option& option) const {
    int64_t room = 0;
    for (const Alike& alike : alike_) {
      room += alike.count *
              std::min(option.ranks_per_worker, Room(*workers_[alike.first], option.threads));
    }
    return room >= option.ranks;
  }

  /// Only when the job itself asks for too many: the search offers no such
  /// numbers.
  void ReportFewCores(Option option) {
    if (Slots(option.threads) >= option.ranks || !result_.misfitting.empty()) return;
    ++result_.considered;
    option.memory = Memory(option);
    option.misfit = std::to_string(option.ranks) + " ranks of " + std::to_string(option.threads) +
                    " threads need more " + (on_devices_ ? "GPUs or cores" : "cores") +
                    " than the workers offer: they have room for " +
                    std::to_string(Slots(option.threads));
    result_.misfitting.push_back(std::move(option));
  }

  static int64_t LargestDevice(const WorkerProfile& worker) {
    int64_t most = 0;
    for (const DeviceSpec& device : worker.devices) {
      if (device.unusable.empty()) most = std::max(most, device.memory_limit_bytes);
    }
    return most;
  }

  std::string MemoryReason(const Option& option) const {
    if (const int64_t over = OverDevice(option); over > 0) {
      return "needs " + HumanBytes(option.device_bytes) + " on the device, " + HumanBytes(over) +
             " more than resources.device_memory_bytes allows";
    }
    const int64_t need = TotalBytes(option.memory);
    int64_t limit = 0;
    for (const Alike& alike : alike_) {
      const WorkerProfile& worker = *workers_[alike.first];
      limit = std::max(limit, on_devices_ ? LargestDevice(worker) : worker.memory_limit_bytes);
    }
    std::string whose = on_devices_ ? "the largest GPU offers" : "the largest worker offers";
    if (int64_t asked = job_.resources.memory_per_rank_bytes; asked > 0 && need > asked) {
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

  TimeBreakdown SlowestRank(const Option& option) {
    TimeBreakdown slowest;
    for (const auto& [w, count] : Placements(option)) {
      const RateModel& rates = rates_[kind_[w]];
      StepInputs inputs{
          shape_,
          option.accumulation_steps,
          option.recomputed_blocks,
          option.threads,
          option.data_ranks() * context_.ranks,
          count,
          BucketBytes(job_, shape_.spec),
          &precision_,
          job_.resources.zero_stage,
          option.micro_batch * OwnLength(),
          Sharded(option.data_ranks()),
          job_.resources.host_link_bytes_per_second,
          offloads_optimizer() ? UploadedWeightBytes(MemoryOf(option)) : 0,
          option.schedule.empty() ? option.attention_blocks : ReplayedAttentions(option.schedule),
          Offloads(job_.resources) ? StreamedWeightBytes(MemoryOf(option)) : StreamedBytes{},
          Offloads(job_.resources) ? OffloadedActivationBytes(MemoryOf(option)) : 0,
          offloads_optimizer(),
          context_,
          ShardRanks(job_.resources.zero_stage, job_.resources.zero_shard_ranks,
                     option.data_ranks()),
          job_.train.local_steps};
      const TimeBreakdown time =
          pipeline_ == 1 ? PredictStep(inputs, Pass(kind_[w], option), rates)
                         : PredictPipelineStep(inputs,
                                               {.cut = cut_,
                                                .schedule = *ScheduleOf(option.accumulation_steps),
                                                .micro_batch = option.micro_batch,
                                                .sequence_length = SequenceLength(job_),
                                                .fp8 = job_.train.fp8,
                                                .dropout = job_.model.dropout,
                                                .within_worker = count == option.ranks},
                                               rates);
      if (StepSeconds(time) > StepSeconds(slowest)) slowest = time;
    }
    return slowest;
  }

  RematCosts CostsOfRemat(const PassCost& pass) const {
    // Bytes at the rate of the worker that is looked at first; what counts is the ratio of times.
    const double bandwidth = rates_.front().MemoryBytesPerSecond(1, 1);
    const double layers = static_cast<double>(shape_.spec.layers);
    RematCosts costs;
    costs.block_seconds =
        pass.block_forward_gemm_seconds + pass.block_forward_memory_bytes / bandwidth;
    costs.attention_seconds = pass.attention_forward_gemm_seconds;
    costs.backward_seconds = pass.backward_gemm_seconds / layers;
    return costs;
  }

  const PassCost& Pass(size_t kind, const Option& option) {
    auto [it, added] = passes_.try_emplace({kind, option.threads, option.micro_batch});
    if (added) {
      it->second = CostOfPass(shape_, option.micro_batch, SequenceLength(job_), precision_,
                              job_.train.fp8, job_.model.dropout, rates_[kind], option.threads,
                              context_.ranks, job_.resources.activation_bits);
    }
    return it->second;
  }

  const JobSpec& job_;
  FastestSteps* const fastest_;  ///< Null: everything is looked at.
  const bool on_devices_;
  const int64_t tensor_;
  const int64_t pipeline_;
  const ContextSharing context_;
  const std::vector<int64_t> cut_;                 ///< Blocks of each stage.
  std::map<int64_t, PipelineSchedule> schedules_;  ///< By number of micro-batches.
  const ModelShape shape_;                         ///< What a rank has of it.
  const PrecisionRecipe& precision_;
  const OptimizerBytes optimizer_;
  const int64_t open_gradients_;
  std::map<int64_t, ShardedParameters> sharded_;  ///< By ranks that share.
  ProductKind products_ = ProductKind::kUnpacked;
  int64_t product_workspace_ = 0;  ///< Of the GPU that wants most.
  std::vector<const WorkerProfile*> workers_;
  /// Workers in a row that are of one kind.
  struct Alike {
    size_t first;
    int64_t count;
  };
  std::vector<Alike> alike_;
  std::vector<size_t> kind_;  ///< By worker: index into rates_.
  std::vector<RateModel> rates_;
  std::map<std::tuple<size_t, int64_t, int64_t>, PassCost> passes_;
  SearchResult result_;
};

}  // namespace

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

std::vector<int64_t> PlaceRanks(const Option& option,
                                const std::vector<const WorkerProfile*>& workers) {
  std::vector<int64_t> ranks_on;
  int64_t left = option.ranks;
  for (const WorkerProfile* worker : workers) {
    ranks_on.push_back(RanksOn(*worker, option, TotalBytes(option.memory), left));
    left -= ranks_on.back();
  }
  return ranks_on;
}

bool WantsDevices(const JobSpec& job, const ClusterProfile& cluster) {
  if (HasTiers(job.resources)) return false;
  if (job.resources.device != "auto") return job.resources.device == "cuda";
  // No pipeline has run on GPUs yet, and attention that ranks share has no kernels there.
  if (job.resources.pipeline_parallel > 1 || job.resources.context_parallel > 1) return false;
  return std::any_of(cluster.workers.begin(), cluster.workers.end(),
                     [](const WorkerProfile& worker) { return worker.device == "cuda"; });
}

SearchResult Search(const JobSpec& job, const ClusterProfile& cluster, FastestSteps* fastest) {
  return Searcher(job, cluster, fastest).Run();
}

}  // namespace weft::planner
