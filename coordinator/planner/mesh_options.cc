#include "coordinator/planner/mesh_options.h"

#include <algorithm>

#include "common/model/pipeline_shape.h"
#include "common/model/technique_cost.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/pipeline_parallel.h"
#include "common/spec/technique_checks.h"

namespace weft::planner {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 20;
// Past this many micro-batches a pipeline has no bubble to speak of.
constexpr int64_t kMostMicroBatches = 1024;

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

/// Whether this many data-parallel ranks are whole shard groups.
bool Divides(const ResourceSpec& resources, int64_t data_ranks) {
  if (data_ranks % resources.expert_parallel != 0) return false;
  const int64_t gradient_ranks = data_ranks * resources.context_parallel;
  return gradient_ranks == 1 ||
         gradient_ranks % std::max<int64_t>(resources.zero_shard_ranks, 1) == 0;
}

/// Whether another mesh of the job has these options, too, of ranks that sum their gradients.
bool IsOfAnotherMesh(const ResourceSpec& own, const ResourceSpec& asked, int64_t gradient_ranks) {
  if (gradient_ranks == 1 && own.zero_stage != asked.zero_stage) return true;
  return own.zero_shard_ranks != asked.zero_shard_ranks && gradient_ranks <= own.zero_shard_ranks;
}

}  // namespace

MeshOptions::MeshOptions(const std::vector<const JobSpec*>& choices, const WorkerGroups& workers)
    : workers_(workers), data_ranks_(Divisors(BatchSchedule(choices.front()->train).unit())) {
  threads_ = {choices.front()->resources.threads_per_rank};
  const bool updates_on_host = std::any_of(
      choices.begin(), choices.end(),
      [](const JobSpec* choice) { return choice->resources.offload_optimizer != "none"; });
  if (*threads_.begin() == 0) threads_ = workers.ThreadChoices(updates_on_host);
}

void MeshOptions::Add(const JobSpec& mesh) {
  const ResourceSpec& resources = mesh.resources;
  const std::pair stages(resources.pipeline_parallel, resources.pipeline_chunks);
  if (!cuts_.contains(stages)) {
    const int64_t count = stages.first * stages.second;
    auto [known, added] = blocks_.try_emplace(count);
    if (added) known->second = CutModel(mesh).value();
    const std::vector<int64_t>& blocks = known->second;
    cuts_.emplace(stages, Cut{blocks, RankBlocks(blocks, stages.first),
                              CutFloor(blocks, resources.pipeline_parallel)});
  }
  const auto [choices, unseen] = choices_.try_emplace(ReplicaRanks(resources));
  if (unseen) AddRanks(mesh, choices->second);
}

void MeshOptions::AddRanks(const JobSpec& mesh, std::vector<RankChoice>& choices) {
  // Whatever data-parallel ranks shard.
  JobSpec any = mesh;
  any.resources.zero_shard_ranks = 0;
  any.resources.expert_parallel = 1;
  for (const int64_t threads : threads_) {
    for (const int64_t ranks : Ranks(any, threads)) {
      const int64_t data = ranks / ReplicaRanks(any.resources);
      if (auto [it, added] = micro_batches_.try_emplace(data); added) {
        it->second = MicroBatches(any, data);
        all_micro_batches_.insert(it->second.begin(), it->second.end());
      }
      auto [it, added] = spreads_.try_emplace({threads, ranks});
      if (added) {
        for (const int64_t spread : workers_.SpreadChoices(ranks, threads)) {
          if (workers_.HasCores(ranks, spread, threads)) it->second.push_back(spread);
        }
      }
      if (it->second.empty()) continue;
      choices.push_back({threads, ranks, it->second, micro_batches_.at(data)});
    }
  }
}

std::vector<int64_t> MeshOptions::Ranks(const JobSpec& mesh, int64_t threads) const {
  const ResourceSpec& resources = mesh.resources;
  if (resources.ranks > 0) return {resources.ranks};
  const int64_t slots = std::max<int64_t>(workers_.Slots(threads), 1);
  const int64_t replica = ReplicaRanks(resources);
  const int64_t parts = JointParts(mesh);
  JobSpec planned = mesh;
  std::vector<int64_t> choices;
  for (const int64_t data : data_ranks_) {
    if (data * replica > slots) break;
    const bool whole = mesh.train.global_batch % (data * parts) == 0;
    const int64_t ranks = data * replica;
    const bool wanted =
        ranks >= resources.min_ranks && (resources.max_ranks == 0 || ranks <= resources.max_ranks);
    if (!wanted || !whole || !Divides(resources, data)) continue;
    // A technique that gives a part to each rank may have fewer parts than ranks.
    planned.resources.ranks = ranks;
    if (CheckTechniques(planned).ok()) choices.push_back(ranks);
  }
  return choices;
}

std::vector<int64_t> MeshOptions::MicroBatches(const JobSpec& job, int64_t data_ranks) const {
  const int64_t sequences = BatchSchedule(job.train).unit() / data_ranks;
  const int64_t length = SequenceLength(job);
  const bool logical = IsMeshDeterministic(job.train);
  const int64_t asked = logical ? LogicalMicroBatch(job.train) : job.resources.micro_batch;
  if (asked > 0) {
    // What is past any memory counts only when the job asks for it.
    if (sequences % asked != 0 || asked * length > kMostTokens * 64) return {};
    return {asked};
  }
  std::vector<int64_t> choices = Divisors(sequences);
  // Those that have as many sequences of each job, of several that are trained together.
  std::erase_if(choices, [parts = JointParts(job)](int64_t choice) { return choice % parts != 0; });
  if (choices.empty()) return {};
  const int64_t largest = job.train.global_batch / LeastMicroBatches(job);
  while (choices.size() > 1 && choices.back() > largest) choices.pop_back();
  // Past a million tokens a pass nothing gets faster, and the arithmetic of
  // bytes stays in range.
  while (choices.size() > 1 && choices.back() * length > kMostTokens) choices.pop_back();
  if (choices.back() * length > kMostTokens * 64) choices.pop_back();
  return choices;
}

bool MeshOptions::Has(const ResourceSpec& mesh, const ResourceSpec* asked, int64_t ranks) const {
  if (mesh.ranks == 0 && !Divides(mesh, ranks / ReplicaRanks(mesh))) return false;
  return asked == nullptr || !IsOfAnotherMesh(mesh, *asked, GradientRanks(mesh, ranks));
}

bool MeshOptions::Takes(const JobSpec& mesh, int64_t ranks, int64_t micro_batch) {
  const ResourceSpec& resources = mesh.resources;
  if (resources.pipeline_parallel == 1) return true;
  const int64_t passes = PassesOf(mesh, ranks, micro_batch);
  return passes <= kMostMicroBatches && TakesMicroBatches(mesh.train, resources.pipeline_parallel,
                                                          resources.pipeline_schedule, passes);
}

bool MeshOptions::MayLackCores(int64_t ranks) const {
  return std::any_of(threads_.begin(), threads_.end(), [&](int64_t threads) {
    return workers_.Slots(threads) < std::max<int64_t>(ranks, 1);
  });
}

std::optional<Candidate> MeshOptions::WithoutCores(const JobSpec& mesh) const {
  const int64_t replica = ReplicaRanks(mesh.resources);
  for (const int64_t threads : threads_) {
    for (const int64_t ranks : Ranks(mesh, threads)) {
      if (workers_.Slots(threads) >= ranks) continue;
      for (const int64_t micro : micro_batches_.at(ranks / replica)) {
        if (!Takes(mesh, ranks, micro)) continue;
        return Candidate{threads, ranks, workers_.SpreadChoices(ranks, threads).front(), micro};
      }
    }
  }
  return std::nullopt;
}

}  // namespace weft::planner
