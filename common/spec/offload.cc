#include "common/spec/offload.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "common/spec/features.h"

namespace weft {
namespace {

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

Status CheckOptimizer(const ResourceSpec& resources) {
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
  if (!resources.delayed_update || resources.offload_optimizer != "none") return OkStatus();
  return InvalidError(
      "resources.delayed_update delays the update of what is offloaded, and nothing is; hint: "
      "resources.offload_optimizer host");
}

/// Units that are updated on the device, chosen or said: what they need.
Status CheckParts(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  const bool chosen = resources.offload_optimizer == "part";
  if (!Asks(job, features::kDeviceUpdatedUnits)) return OkStatus();
  if (!resources.device_updated_units.empty() && resources.offload_optimizer != "host") {
    return InvalidError(
        "resources.device_updated_units is for resources.offload_optimizer host, not " +
        resources.offload_optimizer + "; hint: leave it out" +
        (chosen ? ", part chooses them itself" : ""));
  }
  if (chosen && resources.device_memory_bytes == 0) {
    return InvalidError(
        "resources.offload_optimizer part places what the device has room for, and it has no "
        "limit; hint: resources.device_memory_bytes, or offload_optimizer none");
  }
  return CheckUnits(job, "resources.device_updated_units", resources.device_updated_units,
                    "resources.offload_optimizer none");
}

/// Units whose weights come once a step, chosen or said: what they need.
Status CheckResident(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  const bool chosen = resources.offload_parameters == "part";
  if (!Asks(job, features::kResidentUnits)) return OkStatus();
  if (!resources.resident_units.empty() && resources.offload_parameters != "host") {
    return InvalidError("resources.resident_units is for resources.offload_parameters host, not " +
                        resources.offload_parameters + "; hint: leave it out" +
                        (chosen ? ", part chooses them itself" : ""));
  }
  if (chosen && resources.device_memory_bytes == 0) {
    return InvalidError(
        "resources.offload_parameters part places what the device has room for, and it has no "
        "limit; hint: resources.device_memory_bytes, or offload_parameters none");
  }
  return CheckUnits(job, "resources.resident_units", resources.resident_units,
                    "resources.offload_parameters none");
}

Status CheckParameters(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (resources.offload_parameters != "none" && resources.offload_optimizer == "none") {
    return InvalidError("resources.offload_parameters " + resources.offload_parameters +
                        " has weights on the host, where their update has to be made; hint: "
                        "resources.offload_optimizer host or nvme");
  }
  return CheckResident(job);
}

}  // namespace

bool Offloads(const ResourceSpec& resources) {
  return IsOffloaded(resources.offload_optimizer) || IsOffloaded(resources.offload_activations) ||
         IsOffloaded(resources.offload_parameters);
}

bool NeedsCpus(const JobSpec& job) {
  const Feature* of_cpus[] = {&features::kEmulatedMemory,      &features::kEmulatedLink,
                              &features::kParametersInFile,    &features::kDeviceUpdatedUnits,
                              &features::kLocalStepsOffloaded, &features::kMeshDeterminism};
  return std::any_of(std::begin(of_cpus), std::end(of_cpus),
                     [&](const Feature* feature) { return Asks(job, *feature); });
}

Status CheckOffload(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (resources.host_link_bytes_per_second > 0 && !Offloads(resources)) {
    return InvalidError(
        "resources.host_link_bytes_per_second is the rate of what is offloaded, and nothing is; "
        "hint: resources.offload_optimizer host");
  }
  WEFT_RETURN_IF_ERROR(CheckOptimizer(resources));
  WEFT_RETURN_IF_ERROR(CheckParts(job));
  return CheckParameters(job);
}

}  // namespace weft
