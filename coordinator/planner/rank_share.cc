#include "coordinator/planner/rank_share.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/model/gradient_bytes.h"
#include "common/model/memory_model.h"
#include "common/model/technique_cost.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/offload.h"
#include "common/spec/shard_ranks.h"
#include "coordinator/planner/model_parallel_time.h"

namespace weft::planner {

RankBlocks::RankBlocks(const std::vector<int64_t>& cut, int64_t ranks) {
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t blocks = 0;
    for (int64_t stage = rank; stage < std::ssize(cut); stage += ranks) {
      blocks += cut[static_cast<size_t>(stage)];
    }
    if (rank == 0) {
      first = blocks;
    } else if (rank + 1 < ranks) {
      inner = std::max(inner, blocks);
    }
    if (rank + 1 == ranks) last = blocks;
  }
}

RankParameters::RankParameters(const JobSpec& job)
    : shape(ShapeOfRank(job)),
      optimizer(OptimizerBytesOf(shape.spec, job, PrecisionOf(job.train.precision).products,
                                 shape.tensor, shape.tensor_rows, shape.expert_ranks)),
      bucket_bytes(BucketBytes(job, shape.spec)) {}

RankShare::RankShare(JobSpec job, RankParameters parameters, const WorkerGroups& workers,
                     const std::set<int64_t>& threads, const std::set<int64_t>& micro_batches,
                     std::stop_token stop)
    : job_(std::move(job)),
      workers_(workers),
      precision_(PrecisionOf(job_.train.precision)),
      parameters_(std::move(parameters)),
      chains_(std::move(stop)) {
  kept_ = KeptOf(shape());
  for (const int64_t each : threads) {
    for (const int64_t micro_batch : micro_batches) AddPasses(each, micro_batch);
  }
  if (job_.resources.pipeline_parallel > 1) AddStages();
}

weft::OpenGradients RankShare::OpenGradients() const {
  const std::lock_guard lock(mutex_);
  if (!open_gradients_) {
    open_gradients_ =
        OpenGradientBytes(shape().spec, bucket_bytes(), shape().tensor, shape().tensor_rows,
                          shape().expert_ranks, job_.resources.offload_parameters == "nvme");
  }
  return *open_gradients_;
}

weft::OpenGradients RankShare::OpenGradientsBut(const std::vector<int64_t>& kept) const {
  return OpenGradientBytes(shape().spec, bucket_bytes(), shape().tensor, shape().tensor_rows,
                           shape().expert_ranks, false, kept);
}

StreamedUnit RankShare::Kept(const std::vector<int64_t>& units) const {
  return SumOfUnits(
      StreamedUnits(shape().spec, shape().tensor, shape().tensor_rows, shape().expert_ranks),
      units);
}

const ShardedParameters& RankShare::Sharded(int64_t zero_stage, int64_t shard_ranks) const {
  static const ShardedParameters kNone;
  if (zero_stage < 3 || shard_ranks == 1) return kNone;
  const std::lock_guard lock(mutex_);
  if (!flat_parameters_) {
    const DType gathered = GatheredMatrices(precision_.products, IsMeshDeterministic(job_.train),
                                            workers_.on_devices());
    flat_parameters_.emplace(shape().spec, precision_, gathered, shape().tensor,
                             shape().tensor_rows, shape().expert_ranks, job_.train);
  }
  const auto [known, added] = sharded_.try_emplace(shard_ranks);
  if (added) known->second = flat_parameters_->Among(shard_ranks);
  return known->second;
}

void RankShare::AddStages() {
  if (stages_) return;
  stages_.emplace(shape());
  AddStagePasses();
  if (!stages_->alike()) return;
  kept_first_ = KeptOf(stages_->Of({1, true, false}));
  kept_last_ = KeptOf(stages_->Of({1, false, true}));
  kept_inner_ = KeptOf(stages_->Of({1, false, false}));
  const KeptBytes two = KeptOf(stages_->Of({2, false, false}));
  kept_next_ = {two.values - kept_inner_.values, two.state - kept_inner_.state};
}

void RankShare::AddStagePasses() {
  for (const auto& [key, pass] : passes_) {
    const auto& [kind, threads, micro_batch] = key;
    const auto made = stage_passes_.emplace(
        key, StagePasses(*stages_, micro_batch, SequenceLength(job_), precision_,
                         FormatBlocksOf(precision_, job_.train), DropoutOf(job_.model),
                         workers_.rates(kind), threads, job_.resources.context_parallel,
                         TechniqueProductsOf(job_.train, ComputeUnitsOf(workers_.products())),
                         job_.train));
    if (workers_.kind_count() > 1 || !stages_->alike()) continue;
    least_stage_seconds_[{threads, micro_batch}] =
        made.first->second.LeastSeconds(NearestRanks(threads, micro_batch));
  }
}

RankShare::KeptBytes RankShare::KeptOf(const ModelShape& shape) const {
  MemoryInputs inputs;
  inputs.shape = shape;
  inputs.sequence_length = SequenceLength(job_);
  inputs.ranks = shape.expert_ranks;
  inputs.precision = &precision_;
  inputs.products = workers_.products();
  inputs.format_blocks = FormatBlocksOf(precision_, job_.train);
  inputs.technique_products = TechniqueProductsOf(job_.train, ComputeUnitsOf(inputs.products));
  const MemoryBreakdown memory = PredictMemory(inputs);
  const double share =
      static_cast<double>(shape.Updated()) / static_cast<double>(parameters_.shape.Updated());
  return {static_cast<double>(memory.parameters_bytes + memory.gradients_bytes),
          share * static_cast<double>(optimizer().state)};
}

double RankShare::LeastBytes(const ResourceSpec& mesh, const RankBlocks& blocks,
                             int64_t gradient_ranks) const {
  if (Offloads(mesh) || mesh.zero_stage > 1) return 0;
  // Machines that are not alike have other cuts, and weights of dense blocks next to those in a
  // format other copies.
  const auto alike = [&] {
    const FormatBlocks format = FormatBlocksOf(precision_, job_.train);
    return stages_->alike() && format.dense_first + format.dense_last == 0;
  };
  if (mesh.pipeline_parallel > 1 && (workers_.kind_count() > 1 || !alike())) return 0;
  const int64_t shard_ranks = ShardRanks(mesh.zero_stage, mesh.zero_shard_ranks, gradient_ranks);
  // Sums are not made of the same parts.
  constexpr double kRounding = 1 - 1e-6;
  if (mesh.pipeline_parallel == 1) return kRounding * kept_.Among(shard_ranks);
  const double next = kept_next_.Among(shard_ranks);
  const auto bytes = [&](const KeptBytes& one, int64_t own) {
    return one.Among(shard_ranks) + static_cast<double>(own - 1) * next;
  };
  double most = std::max(bytes(kept_first_, blocks.first), bytes(kept_last_, blocks.last));
  if (blocks.inner > 0) most = std::max(most, bytes(kept_inner_, blocks.inner));
  return kRounding * most;
}

StepInputs RankShare::NearestRanks(int64_t threads, int64_t micro_batch) const {
  StepInputs inputs;
  inputs.shape = shape();
  inputs.precision = &precision_;
  inputs.threads = threads;
  inputs.tokens = micro_batch * (SequenceLength(job_) / job_.resources.context_parallel);
  inputs.second_pass = SecondPassOf(inputs.shape.spec, job_.train);
  inputs.most_on_worker = std::max<int64_t>(workers_.MostOnWorker(threads), 1);
  // On processors those that are alone take no turns.
  inputs.ranks_on_worker = workers_.on_devices() ? inputs.most_on_worker : 1;
  return inputs;
}

void RankShare::AddPasses(int64_t threads, int64_t micro_batch) {
  const ResourceSpec& resources = job_.resources;
  const int64_t length = SequenceLength(job_);
  const StepInputs alone = NearestRanks(threads, micro_batch);
  double least = std::numeric_limits<double>::infinity();
  for (size_t kind = 0; kind < workers_.kind_count(); ++kind) {
    const StepRates& rates = workers_.rates(kind);
    const PassCost pass = CostOfPass(
        shape(), micro_batch, length, precision_,
        FormatShare(shape().spec, precision_, FormatBlocksOf(precision_, job_.train)),
        DropoutOf(job_.model), rates, threads, resources.context_parallel,
        TechniqueProductsOf(job_.train, ComputeUnitsOf(workers_.products())), job_.train);
    passes_[{kind, threads, micro_batch}] = pass;
    const double seconds = pass.gemm_seconds + TensorSeconds(alone, rates) +
                           ExpertSeconds(alone, rates) +
                           rates.LeastMemorySeconds(pass.memory_bytes);
    least = std::min(least, seconds);
  }
  least_seconds_[{threads, micro_batch}] = least;
}

int64_t BucketBytes(const JobSpec& job, const ModelSpec& model) {
  if (job.resources.offload_optimizer == "none" || model.layers == 0) return kBucketBytes;
  return std::min(kBucketBytes, BlockGradientBytes(model));
}

}  // namespace weft::planner
