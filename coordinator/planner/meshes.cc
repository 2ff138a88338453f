#include "coordinator/planner/meshes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

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
  return ranks;
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

/// Schedules and chunks of a pipeline of so many ranks.
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

/// Finds them one axis after the other.
class Meshes {
 public:
  Meshes(const JobSpec& job, const ClusterProfile& cluster)
      : job_(job),
        cluster_(cluster),
        asked_(job.resources),
        on_devices_(WantsDevices(job, cluster)),
        tries_pipelines_(TriesPipelines(job, cluster)),
        most_(MostRanks(job, cluster, on_devices_)),
        asked_mesh_(asked_),
        meshes_{asked_mesh_} {}

  std::vector<MeshChoice> All() {
    // Ranks that share experts see different sequences, and make no replica larger.
    std::vector<int64_t> experts = {asked_.expert_parallel};
    if (job_.model.experts > 0) {
      experts = Degrees(asked_.expert_parallel, most_, job_.model.experts);
    }
    for (const int64_t degree : experts) {
      JobSpec mesh = job_;
      mesh.resources.expert_parallel = degree;
      if (Runs(mesh)) AddGrids(mesh);
    }
    return std::move(meshes_);
  }

 private:
  bool Runs(const JobSpec& mesh) const {
    return WantsDevices(mesh, cluster_) == on_devices_ && ValidateJob(mesh).ok();
  }

  /// Of some kind of parallelism, whether degrees go alone: those that do not, do not with others.
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

  /// Grids of ranks that share matrices.
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
    for (const int64_t degree : Degrees(asked_.context_parallel, most, SequenceLength(job))) {
      if (!Goes(contexts_, degree)) continue;
      JobSpec mesh = job;
      mesh.resources.context_parallel = degree;
      mesh.resources.sequence_parallel = sequences_.front();
      if (degree > 1 && asked_.pipeline_parallel == 1 && !Runs(mesh)) continue;
      AddPipelines(mesh);
      if (degree == 1 || asked_.context_method != "ring") continue;
      mesh.resources.context_method = "ulysses";
      AddPipelines(mesh);
    }
  }

  void AddPipelines(const JobSpec& job) {
    const int64_t others = job.resources.tensor_parallel * job.resources.context_parallel;
    const int64_t asked = asked_.pipeline_parallel;
    for (int64_t degree = 1; degree <= job.model.layers; ++degree) {
      if (asked != 1 && degree != asked) continue;
      if (degree > 1 && !tries_pipelines_) break;
      if (others * degree > most_) break;
      if (asked == 1 && !Goes(pipelines_, degree)) continue;
      for (const auto& [schedule, chunks] : Schedules(asked_, degree, job.model.layers)) {
        JobSpec mesh = job;
        mesh.resources.pipeline_parallel = degree;
        mesh.resources.pipeline_schedule = schedule;
        mesh.resources.pipeline_chunks = chunks;
        mesh.resources.sequence_parallel = sequences_.front();
        // Of ranks that are alike any number up to the blocks has a cut (CutModel).
        if (degree * chunks > job.model.layers || !Runs(mesh)) continue;
        AddSharing(mesh, most_ / (job.resources.tensor_parallel * degree));
      }
    }
  }

  /// What the ranks that sum their gradients, of which there are `most` at most, share, and in
  /// which groups, two of them at least.
  void AddSharing(JobSpec job, int64_t most) {
    ResourceSpec& resources = job.resources;
    const int64_t last = asked_.zero_stage > 0 ? asked_.zero_stage : 3;
    for (int64_t stage = asked_.zero_stage; stage <= last; ++stage) {
      resources.zero_stage = stage;
      resources.zero_shard_ranks = asked_.zero_shard_ranks;
      std::vector<bool> sequences = SequencesThatGo(job);
      Add(job, sequences);
      if (sequences.empty() || stage == 0 || asked_.zero_shard_ranks > 0) continue;
      bool first = true;
      const int64_t sharers = BatchSchedule(job.train).unit() * resources.context_parallel;
      for (const int64_t group : Degrees(1, most / 2, sharers)) {
        if (group == 1) continue;
        resources.zero_shard_ranks = group;
        // Of any number of ranks groups of all sizes go where those of one size do, but for those
        // that experts do not divide.
        if (first || asked_.ranks > 0 || resources.expert_parallel > 1) {
          sequences = SequencesThatGo(job);
        }
        first = false;
        Add(job, sequences);
      }
    }
  }

  /// With sequence parallelism, without, or both.
  std::vector<bool> SequencesThatGo(JobSpec& job) const {
    std::vector<bool> going;
    for (const bool sequence : sequences_) {
      job.resources.sequence_parallel = sequence;
      if (Runs(job)) going.push_back(sequence);
    }
    return going;
  }

  void Add(const JobSpec& job, const std::vector<bool>& sequences) {
    for (const bool sequence : sequences) {
      MeshChoice mesh(job.resources);
      mesh.sequence_parallel = sequence;
      if (!(mesh == asked_mesh_)) meshes_.push_back(std::move(mesh));
    }
  }

  const JobSpec& job_;
  const ClusterProfile& cluster_;
  const ResourceSpec& asked_;
  const bool on_devices_;
  const bool tries_pipelines_;
  const int64_t most_;  ///< Ranks.
  const MeshChoice asked_mesh_;
  std::vector<MeshChoice> meshes_;
  Alone contexts_{&ResourceSpec::context_parallel};
  Alone pipelines_{&ResourceSpec::pipeline_parallel};
  std::vector<bool> sequences_;  ///< With or without sequence parallelism, of the present grid.
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
  return WorkerGroups(cluster, PrecisionOf(job.train.precision), true).rates().size() == 1;
}

std::vector<MeshChoice> MeshesOf(const JobSpec& job, const ClusterProfile& cluster) {
  return Meshes(job, cluster).All();
}

}  // namespace weft::planner
