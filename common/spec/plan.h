#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/precision_names.h"
#include "common/spec/spec_json_fwd.h"

namespace weft {

/// Degrees of parallelism; their product is the number of ranks.
struct Mesh {
  int64_t data = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t context = 1;
  int64_t expert = 1;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("data", "Data-parallel replicas.").Range(1, 1 << 20), self.data);
    visit(Field("tensor", "Tensor-parallel ranks.").Range(1, 1 << 20), self.tensor);
    visit(Field("pipeline", "Pipeline stages.").Range(1, 1 << 20), self.pipeline);
    visit(Field("context", "Context-parallel ranks.").Range(1, 1 << 20), self.context);
    visit(Field("expert", "Expert-parallel ranks.").Range(1, 1 << 20), self.expert);
  }
};

inline int64_t RankCount(const Mesh& mesh) {
  return mesh.data * mesh.tensor * mesh.pipeline * mesh.context * mesh.expert;
}

/// Bytes of one rank by component; the engine's allocator reports the same names.
struct MemoryBreakdown {
  int64_t parameters_bytes = 0;
  int64_t gradients_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t activations_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t communication_bytes = 0;
  int64_t snapshots_bytes = 0;
  int64_t runtime_bytes = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("parameters_bytes", "Master weights and their compute copies.").Unit("bytes"),
          self.parameters_bytes);
    visit(Field("gradients_bytes", "Accumulated gradients.").Unit("bytes"), self.gradients_bytes);
    visit(Field("optimizer_bytes", "Optimizer state.").Unit("bytes"), self.optimizer_bytes);
    visit(Field("activations_bytes", "Tensors saved for the backward pass, at the peak.")
              .Unit("bytes"),
          self.activations_bytes);
    visit(
        Field("workspace_bytes", "Transient results, logits chunk, library scratch.").Unit("bytes"),
        self.workspace_bytes);
    visit(Field("communication_bytes", "Buckets and staging of collectives.").Unit("bytes"),
          self.communication_bytes);
    visit(Field("snapshots_bytes",
                "Snapshots of its own and of a peer's state (checkpoint.peer_every_steps).")
              .Unit("bytes"),
          self.snapshots_bytes);
    visit(Field("runtime_bytes", "The process itself: code, libraries, threads.").Unit("bytes"),
          self.runtime_bytes);
  }
  bool operator==(const MemoryBreakdown&) const = default;
};
WEFT_SPEC_JSON(extern, MemoryBreakdown);

/// Component by component.
inline void AddTo(MemoryBreakdown& sum, const MemoryBreakdown& m) {
  sum.parameters_bytes += m.parameters_bytes;
  sum.gradients_bytes += m.gradients_bytes;
  sum.optimizer_bytes += m.optimizer_bytes;
  sum.activations_bytes += m.activations_bytes;
  sum.workspace_bytes += m.workspace_bytes;
  sum.communication_bytes += m.communication_bytes;
  sum.snapshots_bytes += m.snapshots_bytes;
  sum.runtime_bytes += m.runtime_bytes;
}

inline int64_t TotalBytes(const MemoryBreakdown& m) {
  return m.parameters_bytes + m.gradients_bytes + m.optimizer_bytes + m.activations_bytes +
         m.workspace_bytes + m.communication_bytes + m.snapshots_bytes + m.runtime_bytes;
}

/// Where the time of one optimizer step goes, as seen by the slowest rank.
struct TimeBreakdown {
  double gemm_seconds = 0;
  double memory_bound_seconds = 0;
  double recompute_seconds = 0;
  double exposed_communication_seconds = 0;
  double optimizer_seconds = 0;
  double overhead_seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("gemm_seconds", "Matrix products and attention.").Unit("seconds"),
          self.gemm_seconds);
    visit(Field("memory_bound_seconds", "Norms, activations, embedding, loss.").Unit("seconds"),
          self.memory_bound_seconds);
    visit(Field("recompute_seconds", "Forward work repeated in the backward pass.").Unit("seconds"),
          self.recompute_seconds);
    visit(Field("exposed_communication_seconds", "Collectives that compute does not hide.")
              .Unit("seconds"),
          self.exposed_communication_seconds);
    visit(Field("optimizer_seconds", "Clipping and update.").Unit("seconds"),
          self.optimizer_seconds);
    visit(Field("overhead_seconds", "Fixed cost per operation and micro-batch.").Unit("seconds"),
          self.overhead_seconds);
  }
};

inline double StepSeconds(const TimeBreakdown& t) {
  return t.gemm_seconds + t.memory_bound_seconds + t.recompute_seconds +
         t.exposed_communication_seconds + t.optimizer_seconds + t.overhead_seconds;
}

struct Prediction {
  double step_seconds = 0;
  double tokens_per_second = 0;
  double model_flops_per_step = 0;
  TimeBreakdown time;
  MemoryBreakdown memory_per_rank;
  std::vector<int64_t> stage_bytes;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("step_seconds", "Time of one optimizer step.").Unit("seconds"), self.step_seconds);
    visit(Field("tokens_per_second", "Over all ranks.").Unit("tokens/s"), self.tokens_per_second);
    visit(Field("model_flops_per_step", "Without recomputation; causal attention counted half.")
              .Unit("FLOP"),
          self.model_flops_per_step);
    visit(Field("time", "Parts of step_seconds."), self.time);
    visit(Field("memory_per_rank", "Of the fullest rank."), self.memory_per_rank);
    visit(Field("stage_bytes",
                "By rank of the pipeline, what it has where it computes, on its GPU or machine; "
                "empty: all of memory_per_rank.")
              .Unit("bytes"),
          self.stage_bytes);
  }
};

/// How a job runs: all that the engine needs to know beyond the job, and nothing decides later.
struct Plan {
  Mesh mesh;
  int64_t zero_stage = 0;
  bool sequence_parallel = false;
  int64_t zero_shard_ranks = 0;
  std::string pipeline_schedule = "1f1b";
  int64_t pipeline_chunks = 1;
  std::vector<int64_t> stage_blocks;
  std::string context_method = "ring";
  int64_t recompute_segment = 1;
  std::vector<std::string> recompute_schedule;
  std::string offload_optimizer = "none";
  std::string offload_directory;
  bool delayed_update = false;
  int64_t device_memory_bytes = 0;
  int64_t host_link_bytes_per_second = 0;
  int64_t activation_bits = 0;
  std::string offload_activations = "none";
  std::string offload_parameters = "none";
  std::vector<int64_t> device_updated_units;
  std::vector<int64_t> resident_units;
  int64_t tensor_rows = 1;
  std::string gradient_reduction = "fp32";
  int64_t micro_batch = 1;
  int64_t accumulation_steps = 1;
  int64_t threads_per_rank = 1;
  int64_t bucket_bytes = 26214400;
  std::string precision = "bf16";
  std::string device = "cpu";
  std::vector<std::string> block_memory_policy;
  std::vector<std::string> rank_workers;
  std::vector<int64_t> rank_devices;
  Prediction prediction;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("mesh", "Degrees of parallelism."), self.mesh);
    visit(Field("zero_stage", "What data-parallel ranks shard: 0 nothing.").Range(0, 3),
          self.zero_stage);
    visit(Field("sequence_parallel", "Tensor-parallel ranks shard tokens, too."),
          self.sequence_parallel);
    visit(Field("zero_shard_ranks", "Data-parallel ranks of a shard group of zero_stage; 0: all.")
              .Range(0, 1 << 20),
          self.zero_shard_ranks);
    visit(Field("pipeline_schedule", "Order of a stage's passes.")
              .OneOf({"gpipe", "1f1b", "interleaved", "zero_bubble"}),
          self.pipeline_schedule);
    visit(Field("pipeline_chunks", "Pieces of the model a rank holds.").Range(1, 1 << 10),
          self.pipeline_chunks);
    visit(Field("stage_blocks", "Blocks of each stage, in the model's order; empty: one stage."),
          self.stage_blocks);
    visit(Field("context_method", "How context-parallel ranks attend.").OneOf({"ring", "ulysses"}),
          self.context_method);
    visit(Field("recompute_segment", "Blocks recomputed at once.").Range(1, 1 << 20),
          self.recompute_segment);
    visit(Field("recompute_schedule", "Operations of an optimal plan, in order."),
          self.recompute_schedule);
    visit(Field("offload_optimizer", "Where the optimizer's state and update live.")
              .OneOf({"none", "host", "nvme"}),
          self.offload_optimizer);
    visit(Field("offload_directory", "Folder of the files of nvme."), self.offload_directory);
    visit(Field("delayed_update", "The update overlaps with the next step."), self.delayed_update);
    visit(Field("device_memory_bytes", "Hard limit of device memory on CPUs; 0: none.")
              .Unit("bytes")
              .Range(0, 9e15),
          self.device_memory_bytes);
    visit(Field("host_link_bytes_per_second",
                "Rate of copies between device and host on CPUs; 0: as they go.")
              .Unit("bytes/s")
              .Range(0, 9e15),
          self.host_link_bytes_per_second);
    visit(Field("activation_bits", "Bits of each saved value; 0: as computed.").Range(0, 8),
          self.activation_bits);
    visit(Field("offload_activations", "Where tensors saved for the backward pass wait for it.")
              .OneOf({"none", "host"}),
          self.offload_activations);
    visit(Field("offload_parameters",
                "Where weights are offloaded that come to the device block by block.")
              .OneOf({"none", "host", "nvme"}),
          self.offload_parameters);
    visit(Field("device_updated_units",
                "With offload_optimizer host, units (0: the embeddings, then the blocks, then the "
                "head) whose state stays on the device and is updated there."),
          self.device_updated_units);
    visit(Field("resident_units",
                "With offload_parameters host, units whose weights come once a step and stay until "
                "the update."),
          self.resident_units);
    visit(Field("tensor_rows", "Tensor-parallel ranks that shard a matrix by its inputs (2-D).")
              .Range(1, 1 << 10),
          self.tensor_rows);
    visit(Field("gradient_reduction", "Type in which ranks send gradients to add them up.")
              .OneOf({"fp32", "bf16"}),
          self.gradient_reduction);
    visit(Field("micro_batch", "Sequences per forward and backward pass of a rank.")
              .Unit("sequences")
              .Range(1, 1 << 24),
          self.micro_batch);
    visit(Field("accumulation_steps", "Micro-batches per optimizer step.").Range(1, 1 << 24),
          self.accumulation_steps);
    visit(Field("threads_per_rank", "Compute threads of a rank.").Range(1, 4096),
          self.threads_per_rank);
    visit(Field("bucket_bytes", "Size of a gradient bucket of the all-reduce.")
              .Unit("bytes")
              .Range(1, 1e12),
          self.bucket_bytes);
    visit(Field("precision", "As in train.precision of the job.").OneOf(kPrecisionNames),
          self.precision);
    visit(Field("device", "What every rank computes on.").OneOf({"cpu", "cuda"}), self.device);
    visit(Field("block_memory_policy", "What each block does with its saved tensors.")
              .OneOf({"keep", "recompute", "attention"}),
          self.block_memory_policy);
    visit(Field("rank_workers", "Worker of each rank, by rank."), self.rank_workers);
    visit(Field("rank_devices", "GPU of each rank on its worker, by rank; empty on CPUs."),
          self.rank_devices);
    visit(Field("prediction", "What the planner expects."), self.prediction);
  }
};
WEFT_SPEC_JSON(extern, Plan);

/// Bytes at its peak of rank `rank` of `plan` on its GPU, or on the machine where that computes.
inline int64_t BytesOfRank(const Plan& plan, int64_t rank) {
  const std::vector<int64_t>& bytes = plan.prediction.stage_bytes;
  if (std::ssize(bytes) != plan.mesh.pipeline) {
    return TotalBytes(plan.prediction.memory_per_rank);
  }
  // Ranks of a stage follow one another.
  return bytes[static_cast<size_t>(rank * plan.mesh.pipeline / RankCount(plan.mesh))];
}

/// One plan the planner looked at.
struct PlanCandidate {
  Plan plan;
  bool chosen = false;
  bool feasible = false;
  std::string reason;
  bool lacks_cores = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("plan", "The plan with its prediction."), self.plan);
    visit(Field("chosen", "The best one."), self.chosen);
    visit(Field("feasible", "It fits every limit."), self.feasible);
    visit(Field("reason", "Why it was chosen, or why it lost."), self.reason);
    visit(Field("lacks_cores", "There are no cores or GPUs for its ranks; else memory is short."),
          self.lacks_cores);
  }
};

/// The planner's answer: candidates, best first.
struct PlanReport {
  std::vector<PlanCandidate> candidates;
  int64_t parameters = 0;
  int64_t candidates_considered = 0;
  double planning_seconds = 0;
  int64_t trained_parameters = 0;
  double skipped_weight_gradient_flops = 0;
  int64_t unkept_activation_bytes = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("candidates", "Best first, then the infeasible ones."), self.candidates);
    visit(Field("parameters", "Parameters of the model, with those of adapters."), self.parameters);
    visit(Field("candidates_considered", "Before the list was cut."), self.candidates_considered);
    visit(Field("planning_seconds", "Time the planner took.").Unit("seconds"),
          self.planning_seconds);
    visit(Field("trained_parameters", "Of the parameters those that are not frozen."),
          self.trained_parameters);
    visit(Field("skipped_weight_gradient_flops",
                "FLOPs a step that the chosen plan saves by computing no gradients of frozen "
                "weights."),
          self.skipped_weight_gradient_flops);
    visit(Field("unkept_activation_bytes",
                "Activations of a micro-batch that a rank of the chosen plan does not keep because "
                "weights are frozen.")
              .Unit("bytes"),
          self.unkept_activation_bytes);
  }
};

}  // namespace weft
