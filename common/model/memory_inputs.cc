#include "common/model/memory_inputs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/model/added_network_cost.h"
#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/local_steps.h"
#include "common/spec/planned_job.h"

namespace weft {

MemoryMachine CudaMachine(std::string_view compute_capability) {
  return {ProductKind::kStored, ProductWorkspaceBytes(compute_capability)};
}

MemoryInputs MemoryInputsOfMesh(const JobSpec& planned, const ModelShape& shape,
                                const MemoryMachine& machine) {
  const ResourceSpec& resources = planned.resources;
  MemoryInputs inputs;
  inputs.shape = shape;
  inputs.context = {resources.context_parallel, resources.context_method == "ulysses"};
  const VirtualTokenCounts virtual_tokens = VirtualTokensOf(shape.spec);
  inputs.sequence_length =
      SequenceLength(planned) / inputs.context.ranks + virtual_tokens.in_blocks;
  inputs.prefix_rows = virtual_tokens.in_attention;
  inputs.zero_stage = resources.zero_stage;
  inputs.zero_shard_ranks = resources.zero_shard_ranks;
  inputs.local_steps = MakesLocalSteps(planned.train);
  inputs.micro_batch_tree = IsMeshDeterministic(planned.train);
  inputs.peer_snapshots = planned.checkpoint.peer_every_steps > 0;
  inputs.leaves_out_base = LeavesOutBase(planned.model);
  inputs.bf16_reductions = resources.gradient_reduction == "bf16";
  inputs.precision = &PrecisionOf(planned.train.precision);
  inputs.products = machine.products;
  inputs.product_workspace_bytes = machine.product_workspace_bytes;
  inputs.format_blocks = FormatBlocksOf(*inputs.precision, planned.train);
  inputs.technique_products = TechniqueProductsOf(planned.train, ComputeUnitsOf(inputs.products));
  inputs.job_workspace = WorkspaceOf(planned);
  inputs.added_network = AddedNetworkShape(planned.train);
  inputs.keeps_own_logits = KeepsOwnLogits(planned.train);
  inputs.offload_optimizer = resources.offload_optimizer != "none";
  inputs.offload_activations = resources.offload_activations != "none";
  inputs.offload_parameters = resources.offload_parameters != "none";
  inputs.resident_units = resources.resident_units;
  inputs.parameters_in_file = resources.offload_parameters == "nvme";
  inputs.delayed_update = resources.delayed_update;
  inputs.recompute_segment = resources.recompute_segment;
  inputs.activation_bits = resources.activation_bits;
  // Activations are of these; what the rank has of parameters is counted already.
  if (const auto units = UnitsOfRank(planned)) {
    inputs.evaluated = inputs.shape.spec;
    NarrowTo(*units, inputs.shape.spec);
  }
  return inputs;
}

MemoryInputs MemoryInputsOf(const JobSpec& job, const Plan& plan, const MemoryMachine& machine) {
  JobSpec planned = JobAsPlanned(job, plan);
  planned.resources.zero_stage = plan.zero_stage;
  planned.resources.zero_shard_ranks = plan.zero_shard_ranks;
  const ModelShape shape = ShapeOfRank(planned);
  MemoryInputs inputs = MemoryInputsOfMesh(planned, shape, machine);
  inputs.micro_batch = plan.micro_batch;
  inputs.accumulation_steps = plan.accumulation_steps;
  inputs.ranks = GradientRanks(plan.mesh);
  inputs.threads = plan.threads_per_rank;
  inputs.bucket_bytes = plan.bucket_bytes;
  const ModelSpec& model = shape.spec;
  const int64_t tensor = plan.mesh.tensor, rows = plan.tensor_rows, experts = plan.mesh.expert;
  inputs.optimizer =
      OptimizerBytesOf(model, planned, inputs.precision->products, tensor, rows, experts);
  if (inputs.HasOpenGradients()) {
    inputs.open_gradients = OpenGradientBytes(model, plan.bucket_bytes, tensor, rows, experts,
                                              inputs.parameters_in_file, plan.device_updated_units);
  }
  if (!plan.device_updated_units.empty()) {
    inputs.kept =
        SumOfUnits(StreamedUnits(model, tensor, rows, experts), plan.device_updated_units);
  }
  if (inputs.SharesParameters()) {
    const DType gathered =
        GatheredMatrices(inputs.precision->products, inputs.micro_batch_tree, inputs.OnCuda());
    inputs.sharded = ShardParameters(model, *inputs.precision, gathered, inputs.ShardGroupSize(),
                                     tensor, rows, experts, planned.train);
  }
  const auto blocks_that = [&](const char* policy) {
    return std::count(plan.block_memory_policy.begin(), plan.block_memory_policy.end(), policy);
  };
  inputs.recomputed_blocks = blocks_that("recompute");
  inputs.attention_blocks = blocks_that("attention");
  if (plan.mesh.pipeline > 1 && plan.recompute_schedule.empty()) return inputs;
  const int64_t layers = DeepestModel(job.model, job.train).layers;
  if (auto remat = RematOf(plan, layers); remat.ok()) inputs.remat = *std::move(remat);
  return inputs;
}

}  // namespace weft
