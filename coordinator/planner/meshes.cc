#include "coordinator/planner/meshes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/device_order.h"
#include "common/model/precision.h"
#include "common/spec/batch_schedule.h"
#include "coordinator/planner/search.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {
namespace {

/// Ranks for which there is room, at most.
int64_t MostRanks(const JobSpec& job, const ClusterProfile& cluster, bool on_devices) {
  if (job.resources.ranks > 0) return job.resources.ranks;
  int64_t ranks = 0;
  for (const WorkerProfile& worker : cluster.workers) {
    const int64_t room = worker.cores / std::max<int64_t>(job.resources.threads_per_rank, 1);
    ranks += on_devices ? std::min(room, UsableDevices(worker.devices)) : room;
  }
  return job.resources.max_ranks > 0 ? std::min(ranks, job.resources.max_ranks) : ranks;
}

/// The value itself where it is not the default one, else 1 to `most`, those that divide `whole`.
std::vector<int64_t> Degrees(int64_t value, int64_t most, int64_t whole) {
  if (value != 1) return {value};
  std::vector<int64_t> degrees;
  for (int64_t degree = 1; degree <= std::min(most, whole); ++degree) {
    if (whole % degree == 0) degrees.push_back(degree);
  }
  return degrees;
}

/// Schedules and chunks of a pipeline of this many ranks.
std::vector<std::pair<std::string, int64_t>> Schedules(const ResourceSpec& asked, int64_t ranks,
                                                       int64_t blocks) {
  if (ranks == 1 || asked.pipeline_schedule != "1f1b" || asked.pipeline_chunks != 1) {
    return {{asked.pipeline_schedule, asked.pipeline_chunks}};
  }
  std::vector<std::pair<std::string, int64_t>> schedules = {{"1f1b", 1}, {"zero_bubble", 1}};
  for (int64_t chunks = 2; chunks * ranks <= blocks; ++chunks) {
    schedules.emplace_back("interleaved", chunks);
  }
  return schedules;
}

using Sharings = std::vector<SharingChoice>;

/// Finds them one axis after the other.
class Meshes {
 public:
  Meshes(const JobSpec& job, const ClusterProfile& cluster, const JobCheck& check)
      : job_(job),
        cluster_(cluster),
        check_(check),
        asked_(job.resources),
        on_devices_(WantsDevices(job, cluster)),
        tries_pipelines_(TriesPipelines(job, cluster)),
        most_(MostRanks(job, cluster, on_devices_)),
        asked_mesh_(asked_),
        asked_sharing_{asked_.zero_stage, asked_.zero_shard_ranks, asked_.sequence_parallel},
        families_{{asked_mesh_, std::make_shared<const Sharings>(1, asked_sharing_)}} {}

  std::vector<MeshFamily> All() {
    // Expert-parallel ranks are data-parallel, and make no replica larger.
    std::vector<int64_t> experts = {asked_.expert_parallel};
    if (job_.model.experts > 0) {
      experts = Degrees(asked_.expert_parallel, most_, job_.model.experts);
    }
    for (const int64_t degree : experts) {
      JobSpec mesh = job_;
      mesh.resources.expert_parallel = degree;
      if (Runs(mesh)) AddGrids(mesh);
    }
    return std::move(families_);
  }

 private:
  bool Runs(const JobSpec& mesh) const {
    return WantsDevices(mesh, cluster_) == on_devices_ && check_(mesh).ok();
  }

  /// Whether degrees of one kind of parallelism go alone: those that do not, do not with others.
  struct Alone {
    int64_t ResourceSpec::*field;
    std::map<int64_t, bool> known = {};
  };
  bool Goes(Alone& alone, int64_t degree) const {
    const auto [goes, added] = alone.known.try_emplace(degree);
    if (added) {
      JobSpec mesh = job_;
      mesh.resources.*alone.field = degree;
      goes->second = Runs(mesh);
    }
    return goes->second;
  }

  /// Meshes of 2-D tensor parallelism.
  void AddGrids(const JobSpec& job) {
    for (const int64_t rows : Degrees(asked_.tensor_rows, most_, job.model.width)) {
      std::vector<int64_t> columns_choices = {asked_.tensor_parallel / rows};
      if (asked_.tensor_parallel == 1) {
        columns_choices = Degrees(1, most_ / rows, job.model.heads);
      } else if (asked_.tensor_parallel % rows != 0) {
        continue;
      }
      for (const int64_t columns : columns_choices) {
        JobSpec alone = job_, mesh = job;
        for (JobSpec* grid : {&alone, &mesh}) {
          grid->resources.tensor_parallel = rows * columns;
          grid->resources.tensor_rows = rows;
        }
        sequences_.clear();
        for (const bool sequence : {false, true}) {
          if (asked_.sequence_parallel && !sequence) continue;
          alone.resources.sequence_parallel = sequence;
          if (Runs(alone)) sequences_.push_back(sequence);
        }
        if (!sequences_.empty()) AddContexts(mesh);
      }
    }
  }

  void AddContexts(const JobSpec& job) {
    const int64_t most = most_ / job.resources.tensor_parallel;
    const std::vector<bool> of_grid = sequences_;
    for (const int64_t degree : Degrees(asked_.context_parallel, most, SequenceLength(job))) {
      if (!Goes(contexts_, degree)) continue;
      JobSpec mesh = job;
      mesh.resources.context_parallel = degree;
      sequences_ = degree == 1 ? of_grid : SequencesOf(mesh, of_grid);
      mesh.resources.sequence_parallel = sequences_.front();
      if (degree > 1 && asked_.pipeline_parallel == 1 && !Runs(mesh)) continue;
      AddPipelines(mesh);
      if (degree == 1 || asked_.context_method != "ring") continue;
      mesh.resources.context_method = "ulysses";
      AddPipelines(mesh);
    }
  }

  /// The choices of sequence parallelism, of those that go with its grid, that go with parts of its
  /// sequences, whatever else it shares; all where none does.
  std::vector<bool> SequencesOf(JobSpec mesh, const std::vector<bool>& of_grid) const {
    mesh.resources.ranks = 0;
    mesh.resources.pipeline_parallel = mesh.resources.pipeline_chunks = 1;
    mesh.resources.pipeline_schedule = "1f1b";
    std::vector<bool> going;
    for (const bool sequence : of_grid) {
      mesh.resources.sequence_parallel = sequence;
      if (Runs(mesh)) going.push_back(sequence);
    }
    return going.empty() ? of_grid : going;
  }

  void AddPipelines(const JobSpec& job) {
    const int64_t others = job.resources.tensor_parallel * job.resources.context_parallel;
    const int64_t asked = asked_.pipeline_parallel;
    JobSpec mesh = job;
    // With any number of ranks, all pipelines with a block for each stage go where one does, by
    // schedule.
    std::map<std::tuple<bool, std::string, bool>, bool> known;
    const auto runs = [&](const ResourceSpec& own) {
      if (asked_.ranks > 0) return Runs(mesh);
      const auto [at, added] = known.try_emplace(
          {own.pipeline_parallel > 1, own.pipeline_schedule, own.pipeline_chunks > 1});
      if (added) at->second = Runs(mesh);
      return at->second;
    };
    for (int64_t degree = 1; degree <= job.model.layers; ++degree) {
      if (asked != 1 && degree != asked) continue;
      if (degree > 1 && !tries_pipelines_) break;
      if (others * degree > most_) break;
      if (asked == 1 && !Goes(pipelines_, degree)) continue;
      mesh.resources.pipeline_parallel = degree;
      for (const auto& [schedule, chunks] : Schedules(asked_, degree, job.model.layers)) {
        mesh.resources.pipeline_schedule = schedule;
        mesh.resources.pipeline_chunks = chunks;
        mesh.resources.sequence_parallel = sequences_.front();
        // Any number of like ranks up to the number of blocks has a cut (CutModel).
        if (degree * chunks > job.model.layers || !runs(mesh.resources)) continue;
        AddFamily(mesh, most_ / (job.resources.tensor_parallel * degree));
      }
    }
  }

  /// `most`: of the ranks that sum their gradients.
  void AddFamily(const JobSpec& job, int64_t most) {
    MeshFamily family{MeshChoice(job.resources), SharingsOf(job, most)};
    asked_sharing_.Put(family.mesh);
    if (family.mesh == asked_mesh_) {
      // The first of all.
      Sharings others = *family.sharings;
      std::erase(others, asked_sharing_);
      family.sharings = std::make_shared<const Sharings>(std::move(others));
    }
    if (!family.sharings->empty()) families_.push_back(std::move(family));
  }

  /// What of a mesh decides which ZeRO stages, with groups or without, go with it: the check asks
  /// whether there is some parallelism of a kind, and, where their number is asked for, how many
  /// ranks sum their gradients; only experts ask for more.
  using Kind = std::tuple<bool, bool, bool, bool, bool, int64_t, bool, std::string, bool, int64_t,
                          std::vector<bool>>;
  Kind KindOf(const ResourceSpec& r) const {
    return {r.tensor_parallel > 1,
            r.tensor_rows > 1,
            r.tensor_parallel > r.tensor_rows,
            r.context_parallel > 1,
            r.context_method == "ulysses",
            r.expert_parallel,
            r.pipeline_parallel > 1,
            r.pipeline_schedule,
            r.pipeline_chunks > 1,
            asked_.ranks > 0 ? r.tensor_parallel * r.pipeline_parallel : 0,
            sequences_};
  }

  /// What the ranks that sum their gradients (at least two, at most `most`) shard, and in which
  /// groups.
  std::shared_ptr<const Sharings> SharingsOf(const JobSpec& job, int64_t most) {
    const int64_t context = job.resources.context_parallel;
    std::vector<int64_t>& groups = groups_[context];
    if (groups.empty()) groups = Degrees(1, most_, BatchSchedule(job.train).unit() * context);
    const auto count = std::upper_bound(groups.begin(), groups.end(), most / 2) - groups.begin();
    auto& known = sharings_[{KindOf(job.resources), context, count}];
    if (known == nullptr) known = MakeSharings(job, {groups.begin(), groups.begin() + count});
    return known;
  }

  std::shared_ptr<const Sharings> MakeSharings(JobSpec job, const std::vector<int64_t>& groups) {
    ResourceSpec& resources = job.resources;
    Sharings sharings;
    const auto add = [&](const std::vector<bool>& sequences) {
      for (const bool sequence : sequences) {
        sharings.push_back({resources.zero_stage, resources.zero_shard_ranks, sequence});
      }
    };
    const int64_t last = asked_.zero_stage > 0 ? asked_.zero_stage : 3;
    for (int64_t stage = asked_.zero_stage; stage <= last; ++stage) {
      resources.zero_stage = stage;
      resources.zero_shard_ranks = asked_.zero_shard_ranks;
      std::vector<bool> sequences = SequencesThatGo(job);
      add(sequences);
      if (sequences.empty() || stage == 0 || asked_.zero_shard_ranks > 0) continue;
      bool first = true;
      for (const int64_t group : groups) {
        if (group == 1) continue;
        resources.zero_shard_ranks = group;
        // With any number of ranks groups of all sizes go where those of one size do, except those
        // that experts do not divide.
        if (first || asked_.ranks > 0 || resources.expert_parallel > 1) {
          sequences = SequencesThatGo(job);
        }
        first = false;
        add(sequences);
      }
    }
    return std::make_shared<const Sharings>(std::move(sharings));
  }

  /// With sequence parallelism, without, or both.
  std::vector<bool> SequencesThatGo(JobSpec& job) {
    const ResourceSpec& r = job.resources;
    if (asked_.ranks > 0 || r.expert_parallel > 1) return FindSequencesThatGo(job);
    const auto [known, added] =
        going_.try_emplace({KindOf(r), r.zero_stage, r.zero_shard_ranks > 0});
    if (added) known->second = FindSequencesThatGo(job);
    return known->second;
  }
  std::vector<bool> FindSequencesThatGo(JobSpec& job) const {
    std::vector<bool> going;
    for (const bool sequence : sequences_) {
      job.resources.sequence_parallel = sequence;
      if (Runs(job)) going.push_back(sequence);
    }
    return going;
  }

  const JobSpec& job_;
  const ClusterProfile& cluster_;
  const JobCheck& check_;
  const ResourceSpec& asked_;
  const bool on_devices_;
  const bool tries_pipelines_;
  const int64_t most_;  ///< Ranks.
  const MeshChoice asked_mesh_;
  const SharingChoice asked_sharing_;
  std::vector<MeshFamily> families_;
  Alone contexts_{&ResourceSpec::context_parallel};
  Alone pipelines_{&ResourceSpec::pipeline_parallel};
  std::map<int64_t, std::vector<int64_t>> groups_;  ///< All that share, by ranks of a context.
  /// By the ranks of a context, and how many of groups_.
  std::map<std::tuple<Kind, int64_t, int64_t>, std::shared_ptr<const Sharings>> sharings_;
  std::map<std::tuple<Kind, int64_t, bool>, std::vector<bool>> going_;  ///< By stage, with groups.
  /// With or without sequence parallelism, what goes with the present grid and context.
  std::vector<bool> sequences_;
};

}  // namespace

MeshChoice::MeshChoice(const ResourceSpec& r)
    : tensor_parallel(r.tensor_parallel),
      tensor_rows(r.tensor_rows),
      context_parallel(r.context_parallel),
      expert_parallel(r.expert_parallel),
      pipeline_parallel(r.pipeline_parallel),
      pipeline_chunks(r.pipeline_chunks),
      zero_stage(r.zero_stage),
      zero_shard_ranks(r.zero_shard_ranks),
      sequence_parallel(r.sequence_parallel),
      context_method(r.context_method),
      pipeline_schedule(r.pipeline_schedule) {}

void MeshChoice::Put(ResourceSpec& r) const {
  r.tensor_parallel = tensor_parallel;
  r.tensor_rows = tensor_rows;
  r.context_parallel = context_parallel;
  r.expert_parallel = expert_parallel;
  r.pipeline_parallel = pipeline_parallel;
  r.pipeline_chunks = pipeline_chunks;
  r.zero_stage = zero_stage;
  r.zero_shard_ranks = zero_shard_ranks;
  r.sequence_parallel = sequence_parallel;
  r.context_method = context_method;
  r.pipeline_schedule = pipeline_schedule;
}

bool TriesPipelines(const JobSpec& job, const ClusterProfile& cluster) {
  // On machines of several kinds each is cut in several ways, and bounds that hold for all cuts
  // rule out few, as those do that hold for processors however many ranks share their memory.
  constexpr int64_t kMostGpus = 8, kMostMachines = 8;
  if (job.resources.pipeline_parallel > 1) return true;
  if (!WantsDevices(job, cluster)) return std::ssize(cluster.workers) <= kMostMachines;
  if (MostRanks(job, cluster, true) <= kMostGpus) return true;
  return WorkerGroups(cluster, PrecisionOf(job.train.precision), true).kind_count() == 1;
}

std::vector<MeshFamily> MeshesOf(const JobSpec& job, const ClusterProfile& cluster,
                                 const JobCheck& check) {
  return Meshes(job, cluster, check).All();
}

}  // namespace weft::planner
