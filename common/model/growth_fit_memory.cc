#include "common/model/growth_fit_memory.h"

#include <algorithm>

#include "common/model/model_shape.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/state_tensors.h"
#include "common/model/technique_cost.h"
#include "common/spec/offload.h"
#include "common/spec/phases.h"

namespace weft {
namespace {

/// A value, its gradient, and two moments of Adam.
constexpr int64_t kBytesOfLearned = 16;

/// Whether each rank has the whole model on its device.
bool HasWholeModel(const ResourceSpec& resources) {
  return resources.tensor_parallel == 1 && resources.pipeline_parallel == 1 &&
         resources.context_parallel == 1 && resources.expert_parallel == 1 &&
         resources.zero_stage == 0 && !Offloads(resources);
}

bool HasWholeModel(const Plan& plan) {
  return plan.mesh.data == RankCount(plan.mesh) && plan.zero_stage == 0 &&
         plan.offload_optimizer == "none" && plan.offload_parameters == "none" &&
         plan.offload_activations == "none";
}

/// Numbers of the operator, with those of sides that share a matrix where these are fewer.
int64_t LearnedNumbers(const ModelSpec& from, const ModelSpec& to) {
  const auto side = [](int64_t before, int64_t now) { return before == now ? 0 : before * now; };
  // Written, read, and by the norm before a tied classifier; queries and what reads values; keys
  // and values; the MLP's, written and read.
  int64_t numbers = 3 * side(from.width, to.width) + 2 * side(QueryWidth(from), QueryWidth(to)) +
                    2 * side(KvWidth(from), KvWidth(to)) + 2 * side(MlpWidth(from), MlpWidth(to));
  if (DistinctBlocks(from) == DistinctBlocks(to)) return numbers;
  const int64_t mixes = DistinctBlocks(from) * DistinctBlocks(to);
  for (const ParameterInfo& parameter : ParametersOf(to)) {
    if (parameter.block == 0) numbers += mixes;
  }
  return numbers;
}

}  // namespace

JobSpec JobOfGrowthFit(const JobSpec& phase) {
  JobSpec job = phase;
  job.phases.clear();
  job.train.local_steps = 1;
  job.train.local_sub_networks = false;
  job.train.local_round_seconds = 0;
  job.train.replay_every_steps = 0;
  job.checkpoint.peer_every_steps = 0;
  const ResourceSpec whole;
  ResourceSpec& resources = job.resources;
  resources.zero_stage = whole.zero_stage;
  resources.zero_shard_ranks = whole.zero_shard_ranks;
  resources.tensor_parallel = whole.tensor_parallel;
  resources.tensor_rows = whole.tensor_rows;
  resources.sequence_parallel = whole.sequence_parallel;
  resources.pipeline_parallel = whole.pipeline_parallel;
  resources.pipeline_schedule = whole.pipeline_schedule;
  resources.pipeline_chunks = whole.pipeline_chunks;
  resources.context_parallel = whole.context_parallel;
  resources.context_method = whole.context_method;
  resources.expert_parallel = whole.expert_parallel;
  resources.offload_optimizer = whole.offload_optimizer;
  resources.offload_directory = whole.offload_directory;
  resources.offload_activations = whole.offload_activations;
  resources.offload_parameters = whole.offload_parameters;
  resources.device_updated_units = whole.device_updated_units;
  resources.resident_units = whole.resident_units;
  resources.delayed_update = whole.delayed_update;
  resources.host_link_bytes_per_second = whole.host_link_bytes_per_second;
  return job;
}

Plan PlanOfGrowthFit(const JobSpec& phase, const Plan& plan) {
  Plan fit;
  fit.mesh.data = plan.mesh.data * plan.mesh.expert;
  fit.micro_batch = plan.micro_batch;
  fit.accumulation_steps = plan.accumulation_steps;
  fit.threads_per_rank = plan.threads_per_rank;
  fit.bucket_bytes = plan.bucket_bytes;
  fit.gradient_reduction = plan.gradient_reduction;
  fit.activation_bits = plan.activation_bits;
  fit.precision = plan.precision;
  fit.device = plan.device;
  fit.device_memory_bytes = plan.device_memory_bytes;
  if (HasWholeModel(plan)) {
    fit.block_memory_policy = plan.block_memory_policy;
    fit.recompute_segment = plan.recompute_segment;
    fit.recompute_schedule = plan.recompute_schedule;
    return fit;
  }
  const int64_t layers = DeepestModel(phase.model, phase.train).layers;
  fit.block_memory_policy.assign(static_cast<size_t>(layers), "recompute");
  return fit;
}

std::optional<GrowthFitMemory> GrowthFitMemory::Of(const JobSpec& phase,
                                                   const MemoryMachine& machine) {
  const std::optional<PhaseGrowth> growth = LearnedGrowthOf(phase);
  if (!growth) return std::nullopt;
  JobSpec job = JobOfGrowthFit(phase);
  job.optimizer = StatelessOptimizer();
  Plan plan;
  plan.precision = job.train.precision;
  plan.activation_bits = job.resources.activation_bits;
  plan.gradient_reduction = job.resources.gradient_reduction;
  GrowthFitMemory memory;
  memory.whole_ = MemoryInputsOf(job, plan, machine);
  memory.keeps_ = HasWholeModel(phase.resources);
  memory.whole_.remat = {};
  memory.whole_.recomputed_blocks = memory.whole_.shape.spec.layers;
  if (memory.whole_.OnCuda()) return memory;
  const ModelSpec& resolved = memory.whole_.shape.spec;
  ModelSpec before = growth->before;
  before.vocab_size = resolved.vocab_size;
  before.classes = resolved.classes;
  for (const ParameterInfo& parameter : ParametersOf(before)) {
    memory.old_bytes_ += static_cast<int64_t>(sizeof(float)) * parameter.Elements();
  }
  memory.operator_bytes_ = kBytesOfLearned * LearnedNumbers(before, resolved);
  return memory;
}

MemoryBreakdown GrowthFitMemory::Of(const MemoryInputs& inputs) const {
  MemoryInputs whole = whole_;
  whole.micro_batch = inputs.micro_batch;
  whole.accumulation_steps = inputs.accumulation_steps;
  whole.ranks = inputs.ranks / inputs.context.ranks;
  whole.threads = inputs.threads;
  whole.bucket_bytes = inputs.bucket_bytes;
  if (keeps_) {
    whole.recomputed_blocks = inputs.recomputed_blocks;
    whole.attention_blocks = inputs.attention_blocks;
    whole.recompute_segment = inputs.recompute_segment;
    whole.remat = inputs.remat;
  }
  MemoryBreakdown memory = PredictMemory(whole);
  memory.parameters_bytes += old_bytes_;
  memory.optimizer_bytes += operator_bytes_;
  return memory;
}

}  // namespace weft
