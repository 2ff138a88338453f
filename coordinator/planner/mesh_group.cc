#include "coordinator/planner/mesh_group.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/model/precision.h"
#include "common/model/streamed_units.h"
#include "common/model/technique_cost.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/offload.h"
#include "common/spec/shard_ranks.h"
#include "coordinator/planner/step_time.h"

namespace weft::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Inputs without gradients, values or activations sent between data- and context-parallel ranks.
StepInputs PlainInputsOf(const JobSpec& mesh, const RankShare& share) {
  StepInputs inputs = StepInputsOf(mesh, share);
  inputs.zero_stage = 0;
  inputs.local_steps = 1;
  inputs.round_seconds = 0;
  return inputs;
}

/// What the time depends on of units that are updated on the device.
StepInputs::DeviceUpdatedUnits DeviceUpdatedUnitsOf(const std::vector<int64_t>& kept,
                                                    const ModelShape& shape) {
  const std::vector<StreamedUnit> units =
      StreamedUnits(shape.spec, shape.tensor, shape.tensor_rows, shape.expert_ranks);
  const auto is_kept = [&](int64_t unit) {
    return std::binary_search(kept.begin(), kept.end(), unit);
  };
  // What is not trained does not go over the link.
  const auto goes = [&](int64_t unit) {
    return !is_kept(unit) && units[static_cast<size_t>(unit)].trained > 0;
  };
  StepInputs::DeviceUpdatedUnits found{.trained = SumOfUnits(units, kept).trained};
  // Blocks that layers share are done with in the last of their passes.
  if (DistinctBlocks(shape.spec) < shape.spec.layers) return found;
  const int64_t head = std::ssize(units) - 1;
  for (int64_t unit = 0; unit < head && !goes(unit); ++unit) {
    found.first_blocks += unit > 0 && is_kept(unit) ? 1 : 0;
  }
  // A table that classifies is wanted last, too.
  if (units.back().of_first > 0 && goes(0)) return found;
  for (int64_t unit = head; unit > 0 && !goes(unit); --unit) {
    found.last_blocks += unit < head && is_kept(unit) ? 1 : 0;
  }
  return found;
}

/// `a` and `times` times `b`.
StageSeconds Sum(const StageSeconds& a, const StageSeconds& b, double times) {
  return {a.block + times * b.block, a.stage + times * b.stage, a.first + times * b.first,
          a.last + times * b.last};
}

double SecondsWithoutUpdate(TimeBreakdown time) {
  time.optimizer_seconds = 0;
  return StepSeconds(time);
}

}  // namespace

bool SplitsBackward(const ResourceSpec& resources) {
  return resources.pipeline_schedule == "zero_bubble";
}

ScheduleName ScheduleOf(const JobSpec& mesh, const Candidate& candidate) {
  const ResourceSpec& resources = mesh.resources;
  return {resources.pipeline_schedule, resources.pipeline_parallel, resources.pipeline_chunks,
          PassesOf(mesh, candidate.ranks, candidate.micro_batch)};
}

StepInputs StepInputsOf(const JobSpec& mesh, const RankShare& share) {
  const ResourceSpec& resources = mesh.resources;
  const PrecisionRecipe& precision = PrecisionOf(mesh.train.precision);
  StepInputs inputs;
  inputs.shape = share.shape();
  inputs.bucket_bytes = share.bucket_bytes();
  inputs.precision = &precision;
  inputs.zero_stage = resources.zero_stage;
  inputs.host_link_bytes_per_second = resources.host_link_bytes_per_second;
  inputs.offloads_optimizer = resources.offload_optimizer != "none";
  if (!resources.device_updated_units.empty()) {
    inputs.device_updated = DeviceUpdatedUnitsOf(resources.device_updated_units, share.shape());
  }
  inputs.context = {resources.context_parallel, resources.context_method == "ulysses"};
  inputs.local_steps = mesh.train.local_steps;
  inputs.round_seconds = mesh.train.local_round_seconds;
  inputs.micro_batch_tree = IsMeshDeterministic(mesh.train);
  inputs.pipeline = resources.pipeline_parallel;
  inputs.second_pass = SecondPassOf(inputs.shape.spec, mesh.train);
  inputs.sent_gradients = resources.gradient_reduction == "bf16" ? 0.5 : 1;
  return inputs;
}

void SetFiles(const ResourceSpec& resources, StepInputs& inputs) {
  const int64_t trained = inputs.shape.trained;
  const double share = inputs.Updated() / static_cast<double>(std::max<int64_t>(trained, 1));
  const auto part_of = [&](int64_t bytes, int64_t stage) {
    return inputs.zero_stage >= stage ? static_cast<int64_t>(static_cast<double>(bytes) * share)
                                      : bytes;
  };
  // Moments of AdamW, read and written.
  inputs.file_bytes = resources.offload_optimizer == "nvme" ? part_of(2 * 8 * trained, 1) : 0;
  if (resources.offload_parameters != "nvme") return;
  // Values are written, and read where the pass during the update has not; where ranks gather them
  // both once more. Gradients are read; where these were partial sums, whose norm was not known as
  // they were written, for their norm as well.
  const int64_t stored = ElementBytes(inputs.precision->matrices);
  const bool gathers = inputs.shard_ranks > 1 && inputs.zero_stage < 3;
  const int64_t moves = gathers ? 4 : inputs.shard_ranks > 1 ? 2 : 1;
  inputs.file_bytes += part_of(moves * stored * trained, 3) +
                       part_of((inputs.shape.partial_gradients > 0 ? 2 : 1) * 4 * trained, 2);
  const int64_t written = part_of(4 * trained, 2);
  if (resources.pipeline_parallel > 1) {
    // Once all passes have added to them; of values passes read what stages say (filed_stage).
    inputs.file_bytes += written;
    return;
  }
  inputs.file_pass = {.forward = part_of(stored * inputs.shape.stored, 3)};
  inputs.file_pass.backward = inputs.file_pass.forward + written;
}

double LeastSecondsOf(const JobSpec& mesh, const RankShare& share, const CutFloor& floor,
                      const RankChoice& choice, int64_t micro_batch) {
  const ResourceSpec& resources = mesh.resources;
  const int64_t passes = PassesOf(mesh, choice.ranks, micro_batch);
  if (resources.pipeline_parallel > 1) {
    if (const auto* stages = share.LeastStageSeconds(choice.threads, micro_batch)) {
      // As in PredictStages.
      const double reads = 1 - 1 / static_cast<double>(passes);
      const StageSeconds pass = Sum(stages->pass, stages->reads, reads);
      const bool splits = SplitsBackward(resources);
      const StageSeconds before = splits ? Sum(stages->forward, stages->reads, reads / 3) : pass;
      return kRoundingOfBounds * floor.Seconds(pass, before, passes);
    }
  }
  return kRoundingOfBounds * static_cast<double>(passes) *
         share.LeastPassSeconds(choice.threads, micro_batch) /
         static_cast<double>(resources.pipeline_parallel);
}

MeshGroup::MeshGroup(const Context& context, JobSpec job, std::vector<Mesh> meshes)
    : context_(context),
      job_(std::move(job)),
      meshes_(std::move(meshes)),
      plain_(PlainInputsOf(job_, context.share)),
      taken_(-kInfinity),
      left_(-kInfinity) {}

std::vector<Candidate> MeshGroup::Take(double limit) {
  std::vector<Candidate> candidates;
  left_ = kInfinity;
  ResourceSpec resources = job_.resources;
  int64_t number = 0;
  for (const RankChoice& choice : context_.options.OfReplica(job_)) {
    const int64_t first = number;
    const auto spreads = std::ssize(choice.spreads);
    number += spreads * std::ssize(choice.micro_batches);
    bool known = false, had = false;
    for (int64_t m = 0; m < std::ssize(choice.micro_batches); ++m) {
      const int64_t micro = choice.micro_batches[static_cast<size_t>(m)];
      const double least = LeastSecondsOf(job_, context_.share, context_.cut.floor, choice, micro);
      if (least <= taken_ || least >= left_) continue;
      if (!known) {
        had = std::any_of(meshes_.rbegin(), meshes_.rend(), [&](const Mesh& mesh) {
          mesh.sharing->Put(resources);
          return Has(resources, choice.ranks);
        });
        known = true;
      }
      if (!had) break;
      if (least > limit) {
        left_ = least;
        continue;
      }
      if (!MeshOptions::Takes(job_, choice.ranks, micro)) continue;
      for (int64_t i = 0; i < spreads; ++i) {
        const int64_t spread = choice.spreads[static_cast<size_t>(i)];
        Candidate candidate{choice.threads,         choice.ranks, spread, micro, 0,
                            first + m * spreads + i};
        candidate.least_seconds = std::max(least, LeastSeconds(candidate));
        candidates.push_back(candidate);
      }
    }
  }
  taken_ = limit;
  return candidates;
}

double MeshGroup::LeastSeconds(const Candidate& candidate) {
  if (pipelined()) return LeastSecondsOfPipeline(candidate);
  if (Offloads(job_.resources)) return 0;
  SetCandidate(candidate, plain_);
  return kRoundingOfBounds * kRoundingOfBounds * LeastOfWorkers(plain_, candidate, false);
}

// What the stages of a pipeline take without recomputation, on GPUs as close together as they may
// be (LeastOfWorkers). Where machines are of several kinds, or processors, the products alone,
// which stages share.
double MeshGroup::LeastSecondsOfPipeline(const Candidate& candidate) {
  const RankShare& share = context_.share;
  const int64_t ranks = job_.resources.pipeline_parallel;
  const int64_t passes = PassesOf(job_, candidate.ranks, candidate.micro_batch);
  if (!context_.workers.on_devices() || context_.workers.kind_count() > 1 ||
      Offloads(job_.resources)) {
    double least = kInfinity;
    for (size_t kind = 0; kind < context_.workers.kind_count(); ++kind) {
      const PassCost& pass = share.Pass(kind, candidate.threads, candidate.micro_batch);
      least = std::min(
          least, pass.gemm_seconds * static_cast<double>(passes) / static_cast<double>(ranks));
    }
    return kRoundingOfBounds * least;
  }
  // With more micro-batches each takes longer (PredictStages).
  const auto least_passes = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(passes)));
  const std::tuple key(candidate.threads, candidate.micro_batch, candidate.ranks_per_worker,
                       least_passes);
  auto floor = floors_.find(key);
  if (floor == floors_.end()) {
    SetCandidate(candidate, plain_);
    plain_.accumulation_steps = least_passes;
    PipelineCosts costs;
    costs.first_trained_stage = FirstTrainedStage(plain_.shape.spec, context_.cut.blocks);
    for (const StageForecast& stage :
         PredictStages(plain_, context_.cut.blocks,
                       share.StagePass(0, candidate.threads, candidate.micro_batch))) {
      costs.stages.push_back(stage.cost);
    }
    const PipelineFloor made(costs, ranks, SplitsBackward(job_.resources));
    floor = floors_.emplace(key, made).first;
  }
  return kRoundingOfBounds * floor->second.Seconds(passes);
}

double MeshGroup::LeastSecondsOfMesh(const SharingChoice& sharing, const Candidate& candidate,
                                     StepInputs& inputs) const {
  const int64_t ranks = GradientRanks(job_.resources, candidate.ranks);
  inputs.zero_stage = sharing.zero_stage;
  inputs.ranks = ranks;
  inputs.shard_ranks = ShardRanks(sharing.zero_stage, sharing.zero_shard_ranks, ranks);
  inputs.sharded = context_.share.Sharded(sharing.zero_stage, inputs.shard_ranks);
  SetFiles(job_.resources, inputs);
  return kRoundingOfBounds * LeastOfWorkers(inputs, candidate, true);
}

void MeshGroup::SetCandidate(const Candidate& candidate, StepInputs& inputs) const {
  inputs.accumulation_steps = PassesOf(job_, candidate.ranks, candidate.micro_batch);
  inputs.threads = candidate.threads;
  inputs.tokens = candidate.micro_batch * (SequenceLength(job_) / job_.resources.context_parallel);
  const int64_t machines = std::max<int64_t>(std::ssize(context_.workers.workers()), 1);
  inputs.ranks_on_worker = context_.workers.on_devices() ? candidate.ranks_per_worker
                                                         : (candidate.ranks - 1) / machines + 1;
  inputs.most_on_worker = candidate.ranks_per_worker;
}

// The step without recomputation. Ranks that exchange data are as close together as the plan
// allows. On GPUs recomputing adds to the device's work at least as long as the processor waits
// less. On processors fewer ranks on a machine have more of its memory's bandwidth: as few as there
// are machines for. Of several ranks that offload the products alone
// are certain: recomputing has less cross the link, and hosts update faster where fewer share one.
double MeshGroup::LeastOfWorkers(const StepInputs& inputs, const Candidate& candidate,
                                 bool with_update) const {
  const WorkerGroups& workers = context_.workers;
  const bool whole_step = candidate.ranks == 1 || !Offloads(job_.resources);
  double least = kInfinity;
  for (size_t kind = 0; kind < workers.kind_count(); ++kind) {
    const PassCost& pass = context_.share.Pass(kind, candidate.threads, candidate.micro_batch);
    double seconds = pass.gemm_seconds * static_cast<double>(inputs.accumulation_steps);
    if (whole_step) {
      const TimeBreakdown time = PredictStep(inputs, pass, workers.rates(kind));
      seconds = with_update ? StepSeconds(time) : SecondsWithoutUpdate(time);
    }
    least = std::min(least, seconds);
  }
  return least;
}

std::vector<MeshGroup::OfMesh> MeshGroup::OfMeshes(const Candidate& candidate) const {
  std::vector<OfMesh> found;
  ResourceSpec resources = job_.resources;
  StepInputs inputs;
  if (!pipelined()) {
    inputs = plain_;
    inputs.local_steps = job_.train.local_steps;
    inputs.round_seconds = job_.train.local_round_seconds;
    SetCandidate(candidate, inputs);
  }
  for (const Mesh& mesh : meshes_) {
    mesh.sharing->Put(resources);
    if (!Has(resources, candidate.ranks)) continue;
    found.push_back({mesh.number, candidate});
    if (pipelined()) continue;
    double& least = found.back().candidate.least_seconds;
    least = std::max(least, LeastSecondsOfMesh(*mesh.sharing, candidate, inputs));
  }
  return found;
}

bool MeshGroup::Has(const ResourceSpec& mesh, int64_t ranks) const {
  return context_.options.Has(mesh, context_.asked, ranks) &&
         context_.share.LeastBytes(mesh, context_.cut.of_ranks, GradientRanks(mesh, ranks)) <=
             context_.room;
}

}  // namespace weft::planner
