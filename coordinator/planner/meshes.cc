#include "coordinator/planner/meshes.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "common/model/device_order.h"
#include "common/model/pipeline_shape.h"
#include "coordinator/planner/search.h"

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

bool SameMesh(const ResourceSpec& a, const ResourceSpec& b) {
  const auto key = [](const ResourceSpec& r) {
    return std::tie(r.tensor_parallel, r.context_parallel, r.expert_parallel, r.pipeline_parallel,
                    r.pipeline_schedule, r.pipeline_chunks, r.zero_stage, r.sequence_parallel);
  };
  return key(a) == key(b);
}

}  // namespace

std::vector<JobSpec> MeshesOf(const JobSpec& job, const ClusterProfile& cluster) {
  const ResourceSpec& asked = job.resources;
  const bool on_devices = WantsDevices(job, cluster);
  const int64_t most = MostRanks(job, cluster, on_devices);
  std::vector<JobSpec> meshes = {job};
  const auto runs = [&](const JobSpec& mesh) {
    return WantsDevices(mesh, cluster) == on_devices && ValidateJob(mesh).ok() &&
           CutModel(mesh).ok();
  };
  // Where a degree does not go alone, it does not go with others.
  const auto goes = [&](int64_t ResourceSpec::*field, int64_t degree) {
    JobSpec mesh = job;
    mesh.resources.*field = degree;
    return runs(mesh);
  };
  const auto stages = [&](JobSpec& mesh) {
    const int64_t last = asked.zero_stage > 0 ? asked.zero_stage : 3;
    for (int64_t stage = asked.zero_stage; stage <= last; ++stage) {
      for (const bool sequence : {false, true}) {
        if (asked.sequence_parallel && !sequence) continue;
        mesh.resources.zero_stage = stage;
        mesh.resources.sequence_parallel = sequence;
        if (!SameMesh(mesh.resources, asked) && runs(mesh)) meshes.push_back(mesh);
      }
    }
  };
  // Ranks that share experts see different sequences, and make no replica larger.
  std::vector<int64_t> expert_degrees = {asked.expert_parallel};
  if (job.model.experts > 0) {
    expert_degrees = Degrees(asked.expert_parallel, most, job.model.experts);
  }
  for (const int64_t experts : expert_degrees) {
    if (!goes(&ResourceSpec::expert_parallel, experts)) continue;
    for (const int64_t tensor : Degrees(asked.tensor_parallel, most, job.model.heads)) {
      if (!goes(&ResourceSpec::tensor_parallel, tensor)) continue;
      for (const int64_t context :
           Degrees(asked.context_parallel, most / tensor, SequenceLength(job))) {
        if (!goes(&ResourceSpec::context_parallel, context)) continue;
        for (int64_t pipeline = 1; pipeline <= job.model.layers; ++pipeline) {
          if (asked.pipeline_parallel != 1 && pipeline != asked.pipeline_parallel) continue;
          if (tensor * context * pipeline > most) break;
          if (asked.pipeline_parallel == 1 && !goes(&ResourceSpec::pipeline_parallel, pipeline)) {
            continue;
          }
          for (const auto& [schedule, chunks] : Schedules(asked, pipeline, job.model.layers)) {
            JobSpec mesh = job;
            mesh.resources.expert_parallel = experts;
            mesh.resources.tensor_parallel = tensor;
            mesh.resources.context_parallel = context;
            mesh.resources.pipeline_parallel = pipeline;
            mesh.resources.pipeline_schedule = schedule;
            mesh.resources.pipeline_chunks = chunks;
            stages(mesh);
          }
        }
      }
    }
  }
  return meshes;
}

}  // namespace weft::planner
