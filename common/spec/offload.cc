#include "common/spec/offload.h"

#include <string>
#include <utility>

namespace weft {

bool HasTiers(const ResourceSpec& resources) {
  return resources.offload_optimizer != "none" || resources.device_memory_bytes > 0;
}

Status CheckOffload(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (HasTiers(resources) && resources.device == "cuda") {
    return InvalidError(
        "resources.offload_optimizer and device_memory_bytes are of CPUs, not of resources.device "
        "cuda; hint: resources.device cpu");
  }
  const bool nvme = resources.offload_optimizer == "nvme";
  if (nvme != !resources.offload_directory.empty()) {
    return InvalidError(nvme ? "resources.offload_optimizer nvme needs a "
                               "resources.offload_directory; hint: a folder "
                               "on a fast disk of every worker"
                             : "resources.offload_directory " + resources.offload_directory +
                                   " is for resources.offload_optimizer nvme, not " +
                                   resources.offload_optimizer);
  }
  if (resources.offload_optimizer == "none") {
    if (resources.delayed_update) {
      return InvalidError(
          "resources.delayed_update delays the update of what is offloaded, and nothing is; hint: "
          "resources.offload_optimizer host");
    }
    if (resources.host_link_bytes_per_second == 0) return OkStatus();
    return InvalidError(
        "resources.host_link_bytes_per_second is the rate of what is offloaded, and nothing is; "
        "hint: resources.offload_optimizer host");
  }
  const std::string field = "resources.offload_optimizer " + resources.offload_optimizer;
  if (job.optimizer.name != "adamw") {
    return InvalidError(field + " updates with optimizer.name adamw, not " + job.optimizer.name);
  }
  if (resources.delayed_update && job.train.averaging.kind != "none") {
    return InvalidError(
        "resources.delayed_update does not go with train.averaging, which would see weights that "
        "are being updated");
  }
  const std::pair<const char*, bool> others[] = {
      {"resources.ranks above 1", resources.ranks > 1},
      {"resources.zero_stage", resources.zero_stage > 0},
      {"resources.tensor_parallel", resources.tensor_parallel > 1},
      {"resources.pipeline_parallel", resources.pipeline_parallel > 1},
      {"resources.context_parallel", resources.context_parallel > 1},
      {"model.over_parameterization", job.model.over_parameterization.kind != "none"},
      {"train.precision fp8", job.train.precision == "fp8"},
  };
  for (const auto& [name, asked] : others) {
    if (asked) return InvalidError(field + " does not go with " + name + " yet");
  }
  return OkStatus();
}

}  // namespace weft
