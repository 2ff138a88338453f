#include "common/spec/offload.h"

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace weft {
namespace {

/// Whether something is to stand there that is else on the device.
bool Places(const std::string& place) {
  return place != "none" && place != "auto";
}

/// Whether some of what is offloaded stands on the device all the same.
bool KeepsUnits(const ResourceSpec& resources) {
  return resources.offload_optimizer == "part" || !resources.device_updated_units.empty();
}

/// `units` of the field, which are some of the model's; `hint` where they are all.
Status CheckUnits(const JobSpec& job, const std::string& field, const std::vector<int64_t>& units,
                  const std::string& hint) {
  // Those of a model that is imported show when its folder has been read.
  const ModelSpec& model = job.model;
  if (!model.import_path.empty()) return OkStatus();
  const int64_t last = (model.distinct_blocks > 0 ? model.distinct_blocks : model.layers) + 1;
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i] >= 0 && units[i] <= last && (i == 0 || units[i] > units[i - 1])) continue;
    return InvalidError(field + " has " + std::to_string(units[i]) +
                        ", and lists units of the model in rising order, once each: 0 (the "
                        "embeddings) to " +
                        std::to_string(last) + " (the head)");
  }
  if (std::ssize(units) <= last) return OkStatus();
  return InvalidError(field + " has all units of the model; hint: " + hint);
}

/// Which parts of the state ranks share out that is updated on the host.
Status CheckSharing(const JobSpec& job, const std::string& field) {
  const ResourceSpec& resources = job.resources;
  const std::string stage = "resources.zero_stage " + std::to_string(resources.zero_stage);
  if (resources.zero_stage > 2 && resources.offload_parameters == "none") {
    return InvalidError(field + " updates the parts that ranks have with " + stage +
                        " on the host, where they then stand; hint: resources.offload_parameters "
                        "host, or zero_stage 2");
  }
  if (resources.zero_stage > 1 && resources.delayed_update) {
    return InvalidError("resources.delayed_update does not go with " + stage +
                        ", whose ranks add to their parts of the gradients while the update would "
                        "read them; hint: resources.zero_stage 1");
  }
  return OkStatus();
}

Status CheckOptimizer(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  const bool nvme = resources.offload_optimizer == "nvme";
  const bool in_file = nvme || resources.offload_parameters == "nvme";
  if (in_file != !resources.offload_directory.empty()) {
    return InvalidError(in_file ? std::string("resources.offload_") +
                                      (nvme ? "optimizer" : "parameters") +
                                      " nvme needs a resources.offload_directory; hint: a folder "
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
  return CheckSharing(job, field);
}

/// Workers that make steps of their own add up on their hosts what they have learned.
bool SumsRoundsOnHosts(const JobSpec& job) {
  return job.train.local_steps > 1 && Places(job.resources.offload_optimizer);
}

/// What units that are updated on the device, chosen or said, do not go with.
Status CheckParts(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  const bool chosen = resources.offload_optimizer == "part";
  if (!KeepsUnits(resources)) return OkStatus();
  const std::string field =
      chosen ? "resources.offload_optimizer part" : "resources.device_updated_units";
  const auto refused = [&](const std::string& what, const std::string& hint) {
    return InvalidError(field + " does not go with " + what + "; hint: " + hint);
  };
  if (!resources.device_updated_units.empty() && resources.offload_optimizer != "host") {
    return InvalidError(
        "resources.device_updated_units is for resources.offload_optimizer host, not " +
        resources.offload_optimizer + "; hint: leave it out" +
        (chosen ? ", part chooses them itself" : ""));
  }
  if (chosen && resources.device_memory_bytes == 0) {
    return InvalidError(field +
                        " places what the device has room for, and it has no limit; hint: "
                        "resources.device_memory_bytes, or offload_optimizer none");
  }
  const std::string whole = "resources.offload_optimizer host without device_updated_units";
  if (resources.device == "cuda") {
    return refused("resources.device cuda yet, whose host makes all of the update",
                   whole + ", or resources.device cpu");
  }
  if (resources.offload_parameters != "none") {
    return refused("resources.offload_parameters " + resources.offload_parameters +
                       ", which leaves no weights on the device",
                   "offload_parameters none");
  }
  if (resources.delayed_update) {
    return refused("resources.delayed_update, whose update would be late of some units alone",
                   "one of the two");
  }
  if (resources.zero_stage > 0) {
    return refused("resources.zero_stage " + std::to_string(resources.zero_stage) +
                       " yet, whose ranks have parts of all units",
                   "resources.zero_stage 0, or " + whole);
  }
  if (resources.pipeline_parallel > 1) {
    return refused("resources.pipeline_parallel yet, whose stages have other units each", whole);
  }
  if (job.train.local_steps > 1) {
    return refused("train.local_steps yet, whose outer steps are made on the host", whole);
  }
  return CheckUnits(job, "resources.device_updated_units", resources.device_updated_units,
                    "resources.offload_optimizer none");
}

/// What units whose weights come once a step, chosen or said, do not go with.
Status CheckResident(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  const bool chosen = resources.offload_parameters == "part";
  if (!chosen && resources.resident_units.empty()) return OkStatus();
  const std::string field =
      chosen ? "resources.offload_parameters part" : "resources.resident_units";
  const auto refused = [&](const std::string& what, const std::string& hint) {
    return InvalidError(field + " does not go with " + what + "; hint: " + hint);
  };
  if (!resources.resident_units.empty() && resources.offload_parameters != "host") {
    return InvalidError("resources.resident_units is for resources.offload_parameters host, not " +
                        resources.offload_parameters + "; hint: leave it out" +
                        (chosen ? ", part chooses them itself" : ""));
  }
  if (chosen && resources.device_memory_bytes == 0) {
    return InvalidError(field +
                        " places what the device has room for, and it has no limit; hint: "
                        "resources.device_memory_bytes, or offload_parameters none");
  }
  const std::string whole = "resources.offload_parameters host without resident_units";
  if (resources.zero_stage > 2) {
    return refused("resources.zero_stage " + std::to_string(resources.zero_stage) +
                       " yet, whose ranks bring each other parts of all units",
                   "resources.zero_stage 2, or " + whole);
  }
  if (resources.pipeline_parallel > 1) {
    return refused("resources.pipeline_parallel yet, whose stages have other units each", whole);
  }
  return CheckUnits(job, "resources.resident_units", resources.resident_units,
                    "resources.offload_parameters none");
}

/// What weights and gradients that stand in a file do not go with.
Status CheckParametersInFile(const JobSpec& job, const std::string& field) {
  if (job.resources.device == "cuda") {
    return InvalidError(field +
                        " is of CPUs yet: what goes up to resources.device cuda stands in pinned "
                        "memory for the whole run; hint: offload_parameters host");
  }
  if (job.train.local_steps > 1) {
    return InvalidError(field +
                        " does not go with train.local_steps, of several ranks; hint: one "
                        "of the two");
  }
  if (job.train.averaging.kind != "none") {
    return InvalidError(field + " does not go with train.averaging " + job.train.averaging.kind +
                        ", whose averages stand on the host, as large as the weights; hint: one "
                        "of the two");
  }
  return OkStatus();
}

Status CheckParameters(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (resources.offload_parameters == "none") return CheckResident(job);
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
  if (resources.offload_parameters == "nvme") {
    WEFT_RETURN_IF_ERROR(CheckParametersInFile(job, field));
  }
  return CheckResident(job);
}

/// What resources.device cuda does not go with.
Status CheckGpu(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (resources.device_memory_bytes > 0) {
    return InvalidError(
        "resources.device_memory_bytes is the memory of a device that a CPU stands for, and "
        "resources.device cuda has its own; hint: leave it out, or resources.device cpu");
  }
  if (resources.host_link_bytes_per_second > 0) {
    return InvalidError(
        "resources.host_link_bytes_per_second is the rate of a link that is emulated, and "
        "resources.device cuda has its own; hint: leave it out, or resources.device cpu");
  }
  if (SumsRoundsOnHosts(job)) {
    return InvalidError("train.local_steps " + std::to_string(job.train.local_steps) +
                        " with resources.offload_optimizer " + resources.offload_optimizer +
                        " is of CPUs yet, whose ranks sum on their hosts what they have learned; "
                        "hint: resources.offload_optimizer none, or resources.device cpu");
  }
  return OkStatus();
}

}  // namespace

bool Offloads(const ResourceSpec& resources) {
  return Places(resources.offload_optimizer) || Places(resources.offload_activations) ||
         Places(resources.offload_parameters);
}

bool WantsTiersOfCpus(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  return resources.device_memory_bytes > 0 || resources.host_link_bytes_per_second > 0 ||
         resources.offload_parameters == "nvme" || KeepsUnits(resources) || SumsRoundsOnHosts(job);
}

Status CheckOffload(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (resources.device == "cuda") WEFT_RETURN_IF_ERROR(CheckGpu(job));
  if (resources.host_link_bytes_per_second > 0 && !Offloads(resources)) {
    return InvalidError(
        "resources.host_link_bytes_per_second is the rate of what is offloaded, and nothing is; "
        "hint: resources.offload_optimizer host");
  }
  WEFT_RETURN_IF_ERROR(CheckOptimizer(job));
  WEFT_RETURN_IF_ERROR(CheckParts(job));
  return CheckParameters(job);
}

}  // namespace weft
