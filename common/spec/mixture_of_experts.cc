#include "common/spec/mixture_of_experts.h"

#include <string>
#include <utility>

namespace weft {

Status CheckMixtureOfExperts(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  if (job.model.experts == 0) return OkStatus();
  const std::string field = "model.experts " + std::to_string(job.model.experts);
  if (resources.device != "cpu") {
    return InvalidError(field + " is for CPUs; hint: resources.device: cpu");
  }
  const std::pair<const char*, bool> others[] = {
      {"train.precision fp8; hint: bf16", job.train.precision == "fp8"},
      {"resources.tensor_parallel yet; hint: 1", resources.tensor_parallel > 1},
      {"resources.pipeline_parallel yet; hint: 1", resources.pipeline_parallel > 1},
      {"resources.context_parallel yet; hint: 1", resources.context_parallel > 1},
      {"resources.zero_stage yet; hint: 0", resources.zero_stage > 0},
      {"resources.offload_optimizer yet; hint: none", resources.offload_optimizer != "none"},
      {"resources.offload_activations yet; hint: none", resources.offload_activations != "none"},
      {"resources.activation_bits yet; hint: 0", resources.activation_bits > 0},
  };
  for (const auto& [name, asked] : others) {
    if (asked) return InvalidError(field + " does not go with " + name);
  }
  return OkStatus();
}

}  // namespace weft
