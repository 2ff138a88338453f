#include "common/spec/offload.h"

#include <string>
#include <utility>

namespace weft {
namespace {

/// What of `job` no offloaded state goes with, told of `field`. Ranks that make local steps have
/// their tiers to themselves.
Status CheckMesh(const JobSpec& job, const std::string& field) {
  const ResourceSpec& resources = job.resources;
  const std::pair<const char*, bool> others[] = {
      {"resources.ranks above 1 without train.local_steps",
       resources.ranks > 1 && job.train.local_steps == 1},
      {"resources.zero_stage", resources.zero_stage > 0},
      {"resources.tensor_parallel", resources.tensor_parallel > 1},
      {"resources.pipeline_parallel", resources.pipeline_parallel > 1},
      {"resources.context_parallel", resources.context_parallel > 1},
  };
  for (const auto& [name, asked] : others) {
    if (asked) return InvalidError(field + " does not go with " + name + " yet");
  }
  return OkStatus();
}

Status CheckOptimizer(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
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
    if (!resources.delayed_update) return OkStatus();
    return InvalidError(
        "resources.delayed_update delays the update of what is offloaded, and nothing is; hint: "
        "resources.offload_optimizer host");
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
  if (job.model.over_parameterization.kind != "none") {
    return InvalidError(field + " does not go with model.over_parameterization yet");
  }
  if (job.train.precision == "fp8") {
    return InvalidError(field + " does not go with train.precision fp8 yet");
  }
  return CheckMesh(job, field);
}

Status CheckActivations(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (resources.offload_activations == "none") return OkStatus();
  const std::string field = "resources.offload_activations " + resources.offload_activations;
  if (resources.activation_bits > 0) {
    return InvalidError(field +
                        " does not go with resources.activation_bits yet; hint: one of the two");
  }
  return CheckMesh(job, field);
}

Status CheckParameters(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (resources.offload_parameters == "none") return OkStatus();
  const std::string field = "resources.offload_parameters " + resources.offload_parameters;
  if (resources.offload_optimizer == "none") {
    return InvalidError(field +
                        " has weights on the host, where their update has to be made; hint: "
                        "resources.offload_optimizer host or nvme");
  }
  if (resources.delayed_update) {
    return InvalidError(field +
                        " does not go with resources.delayed_update, whose next step would read "
                        "weights that are being updated; hint: one of the two");
  }
  if (resources.recompute_segment > 1 || resources.recompute == "optimal") {
    return InvalidError(field +
                        " has parameters of one block at a time on the device, and several blocks "
                        "cannot be recomputed at once; hint: resources.recompute block or auto, "
                        "recompute_segment 1");
  }
  return OkStatus();
}

}  // namespace

bool Offloads(const ResourceSpec& resources) {
  const auto outside = [](const std::string& place) { return place != "none" && place != "auto"; };
  return outside(resources.offload_optimizer) || outside(resources.offload_activations) ||
         outside(resources.offload_parameters);
}

bool HasTiers(const ResourceSpec& resources) {
  return Offloads(resources) || resources.device_memory_bytes > 0;
}

Status CheckOffload(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (HasTiers(resources) && resources.device == "cuda") {
    return InvalidError(
        "resources.offload_optimizer, offload_activations, offload_parameters and "
        "device_memory_bytes are of CPUs, not of resources.device cuda; hint: resources.device "
        "cpu");
  }
  if (resources.host_link_bytes_per_second > 0 && !Offloads(resources)) {
    return InvalidError(
        "resources.host_link_bytes_per_second is the rate of what is offloaded, and nothing is; "
        "hint: resources.offload_optimizer host");
  }
  WEFT_RETURN_IF_ERROR(CheckOptimizer(job));
  WEFT_RETURN_IF_ERROR(CheckActivations(job));
  return CheckParameters(job);
}

}  // namespace weft
