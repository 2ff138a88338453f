#include "common/spec/planned_job.h"

#include <string_view>

#include "common/spec/compatibility.h"
#include "common/spec/technique_checks.h"

namespace weft {

JobSpec JobAsPlanned(const JobSpec& job, const Plan& plan) {
  JobSpec planned = job;
  ResourceSpec& resources = planned.resources;
  resources.ranks = RankCount(plan.mesh);
  resources.threads_per_rank = plan.threads_per_rank;
  resources.micro_batch = plan.micro_batch;
  resources.tensor_parallel = plan.mesh.tensor;
  resources.tensor_rows = plan.tensor_rows;
  resources.context_parallel = plan.mesh.context;
  resources.context_method = plan.context_method;
  resources.expert_parallel = plan.mesh.expert;
  resources.pipeline_parallel = plan.mesh.pipeline;
  if (plan.mesh.pipeline > 1) {
    resources.pipeline_schedule = plan.pipeline_schedule;
    resources.pipeline_chunks = plan.pipeline_chunks;
  }
  // With one rank there is nothing to share, and the plan does not say what was asked for.
  if (plan.zero_stage > 0) {
    resources.zero_stage = plan.zero_stage;
    resources.zero_shard_ranks = plan.zero_shard_ranks;
  }
  resources.sequence_parallel = plan.sequence_parallel;
  resources.offload_optimizer = plan.offload_optimizer;
  resources.offload_directory = plan.offload_directory;
  resources.offload_parameters = plan.offload_parameters;
  resources.device_updated_units = plan.device_updated_units;
  resources.resident_units = plan.resident_units;
  resources.offload_activations = plan.offload_activations;
  resources.delayed_update = plan.delayed_update;
  resources.device_memory_bytes = plan.device_memory_bytes;
  resources.host_link_bytes_per_second = plan.host_link_bytes_per_second;
  resources.activation_bits = plan.activation_bits;
  resources.gradient_reduction = plan.gradient_reduction;
  resources.recompute_segment = plan.recompute_segment;
  if (!plan.recompute_schedule.empty()) resources.recompute = "optimal";
  SetPrecision(planned, plan.precision);
  return planned;
}

Status CheckPlanCompatibility(const JobSpec& job, const Plan& plan) {
  constexpr std::string_view kWhose = "the plan";
  JobSpec planned = JobAsPlanned(job, plan);
  planned.resources.device = plan.device;
  WEFT_RETURN_IF_ERROR(CheckCompatibility(planned).WithContext(kWhose));
  if (planned.model.import_path.empty()) return OkStatus();
  planned.model.import_path.clear();
  return CheckCompatibility(planned).WithContext(kWhose);
}

}  // namespace weft
