#include "coordinator/planner/mesh_group.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/model/precision.h"

namespace weft::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

bool SplitsBackward(const ResourceSpec& resources) {
  return resources.pipeline_schedule == "zero_bubble";
}

ScheduleName ScheduleOf(const JobSpec& mesh, const Candidate& candidate) {
  const ResourceSpec& resources = mesh.resources;
  return {resources.pipeline_schedule, resources.pipeline_parallel, resources.pipeline_chunks,
          PassesOf(mesh, candidate.ranks, candidate.micro_batch)};
}

double LeastSecondsOf(const JobSpec& mesh, const RankShare& share, const CutFloor& floor,
                      const RankChoice& choice, int64_t micro_batch) {
  const ResourceSpec& resources = mesh.resources;
  const int64_t passes = PassesOf(mesh, choice.ranks, micro_batch);
  if (resources.pipeline_parallel > 1) {
    if (const auto* stages = share.LeastStageSeconds(choice.threads, micro_batch)) {
      return kRoundingOfBounds *
             floor.Seconds(stages->pass, SplitsBackward(resources) ? stages->forward : stages->pass,
                           passes);
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
      taken_(-kInfinity),
      left_(-kInfinity) {}

std::vector<Candidate> MeshGroup::Take(double limit) {
  std::vector<Candidate> candidates;
  left_ = kInfinity;
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
        had = std::any_of(meshes_.rbegin(), meshes_.rend(),
                          [&](const Mesh& mesh) { return Has(*mesh.sharing, choice.ranks); });
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
        candidate.least_seconds = LeastSeconds(candidate, least);
        candidates.push_back(candidate);
      }
    }
  }
  taken_ = limit;
  return candidates;
}

double MeshGroup::LeastSeconds(const Candidate& candidate, double least) {
  return pipelined() ? std::max(least, PipelineSeconds(candidate)) : least;
}

// What the stages of a pipeline take without recomputation, on GPUs as close together as they may
// stand (MeshSearch::LeastSeconds): no pass depends on what data-parallel ranks share, which they
// tell each other beside it. Where machines are of several kinds, or processors, the products
// alone, which stages share.
double MeshGroup::PipelineSeconds(const Candidate& candidate) {
  const RankShare& share = context_.share;
  const ResourceSpec& resources = job_.resources;
  const std::vector<RateModel>& rates = context_.workers.rates();
  const int64_t passes = PassesOf(job_, candidate.ranks, candidate.micro_batch);
  if (!context_.workers.on_devices() || rates.size() > 1) {
    double least = kInfinity;
    for (size_t kind = 0; kind < rates.size(); ++kind) {
      const PassCost& pass = share.Pass(kind, candidate.threads, candidate.micro_batch);
      least = std::min(least, pass.gemm_seconds * static_cast<double>(passes) /
                                  static_cast<double>(resources.pipeline_parallel));
    }
    return kRoundingOfBounds * least;
  }
  const std::tuple key(candidate.threads, candidate.micro_batch, candidate.ranks_per_worker);
  auto floor = floors_.find(key);
  if (floor == floors_.end()) {
    StepInputs inputs;
    inputs.shape = share.shape();
    inputs.bucket_bytes = share.bucket_bytes();
    inputs.precision = &PrecisionOf(job_.train.precision);
    inputs.context = {resources.context_parallel, resources.context_method == "ulysses"};
    inputs.ranks = inputs.shape.expert_ranks;
    inputs.threads = candidate.threads;
    inputs.tokens = candidate.micro_batch * (SequenceLength(job_) / resources.context_parallel);
    inputs.ranks_on_worker = candidate.ranks_per_worker;
    PipelineCosts costs;
    costs.first_trained_stage = FirstTrainedStage(inputs.shape.spec, context_.cut.blocks);
    for (const StageForecast& stage :
         PredictStages(inputs, context_.cut.blocks,
                       share.StagePass(0, candidate.threads, candidate.micro_batch))) {
      costs.stages.push_back(stage.cost);
    }
    const PipelineFloor made(costs, resources.pipeline_parallel, SplitsBackward(resources));
    floor = floors_.emplace(key, made).first;
  }
  return kRoundingOfBounds * floor->second.Seconds(passes);
}

std::vector<size_t> MeshGroup::MeshesWith(const Candidate& candidate) {
  std::vector<size_t> numbers;
  for (const Mesh& mesh : meshes_) {
    if (Has(*mesh.sharing, candidate.ranks)) numbers.push_back(mesh.number);
  }
  return numbers;
}

bool MeshGroup::Has(const SharingChoice& sharing, int64_t ranks) {
  sharing.Put(job_.resources);
  return context_.options.Has(job_, context_.asked, ranks) &&
         context_.share.LeastBytes(job_, context_.cut.of_ranks,
                                   GradientRanks(job_.resources, ranks)) <= context_.room;
}

}  // namespace weft::planner
