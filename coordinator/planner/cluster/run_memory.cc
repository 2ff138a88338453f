#include "coordinator/planner/cluster/run_memory.h"

#include <algorithm>

#include "common/number.h"

namespace weft::planner {
namespace {

constexpr double kHalf = 2;  // bytes of bf16 and fp16
constexpr double kF32 = 4;
// Master and two moments.
constexpr double kOptimizerBytes = 3 * kF32;
// Bytes of a logit: in half precision and in f32. A loss of one operation after the other also has
// the softmax in f32 and the gradient in half precision.
constexpr double kFusedLogit = kHalf + kF32, kPlainLogit = 2 * kHalf + 2 * kF32;
// Bytes of a score: softmax, its result after dropout, and the mask of a byte.
constexpr double kScore = 2 * kHalf + 1;

double Tokens(const ClusterRun& run) {
  return D(run.micro_batch * run.model.sequence_length) / D(run.context);
}

/// Width of the residual stream on a rank: ranks may shard what is not a product.
double StreamWidth(const SoftwareStack& stack, const ClusterRun& run) {
  return D(run.model.width) / (stack.sequence_parallel ? D(run.tensor) : 1);
}

/// Micro-batches whose activations the rank has at once: one for each stage from its own on, and
/// with several stages a rank those of the warm-up (Narayanan et al. 2021, section 2.2).
double MicroBatchesInFlight(const ClusterRun& run, int64_t position) {
  const double passes = D(run.global_batch) / D(run.data * run.micro_batch);
  const double stages = D(run.pipeline), each = D(run.stages_per_rank);
  const double in_flight = run.stages_per_rank > 1 ? stages + (stages - 1 - 2 * D(position)) / each
                                                   : stages - D(position);
  return std::min(in_flight, passes);
}

double ScoresOfBlock(const SoftwareStack& stack, const ClusterRun& run) {
  if (stack.fused_attention) return 0;
  return kScore * Tokens(run) * D(run.model.sequence_length * run.model.heads) / D(run.tensor);
}

double SavedWithoutScores(const SoftwareStack& stack, const ClusterRun& run) {
  const DecoderShape& model = run.model;
  const double width = StreamWidth(stack, run), tensor = D(run.tensor);
  const double heads = D(2 * model.heads + 2 * model.key_heads) * D(model.HeadWidth()) / tensor;
  const bool elementwise = run.recomputation == Recomputation::kElementwise;
  const double after =
      stack.memory.keeps_activated && !elementwise ? D(model.mlp_width) / tensor : 0;
  const double inner = D(model.mlp_width) * (model.gated ? 2 : 1) / tensor + after;
  // The residual stream and the result of its norm, twice; queries, keys, values and what attention
  // makes of them.
  double halves = (elementwise ? 2 : 4) * width + heads;
  // What norms keep, and the logarithms of attention's sums.
  double singles = (model.gated ? 2 : 4) + D(model.heads) / tensor;
  if (model.HasExperts()) {
    const double rows = model.RowsOfToken();
    const double read =
        D(model.width) / tensor * (stack.sequence_parallel ? 1 : D(run.ExpertTensor()));
    // What experts read, what they have around their activation, and their results.
    halves += rows * (read + inner) + D(model.experts_per_token) * read;
    singles += D(model.experts) + 3 * D(model.experts_per_token);
  } else {
    halves += inner;
  }
  const double masks = stack.fused_attention ? 0 : 2 * width;
  return Tokens(run) * (kHalf * halves + kF32 * singles + masks);
}

}  // namespace

double SavedByBlock(const SoftwareStack& stack, const ClusterRun& run) {
  const bool scores = run.recomputation != Recomputation::kAttention;
  return SavedWithoutScores(stack, run) + (scores ? ScoresOfBlock(stack, run) : 0);
}

RunMemory MemoryAt(const SoftwareStack& stack, const ClusterRun& run, int64_t position) {
  const DecoderShape& model = run.model;
  const ProgramMemory& program = stack.memory;
  const double blocks = D(BlocksAt(stack, run, position)), tensor = D(run.tensor);
  const bool is_last = position == run.pipeline - 1;
  const BlockParameters block = ParametersOfBlock(model);
  const double dense = (blocks * block.dense + TableParametersAt(run, position)) / tensor;
  const double experts = blocks * block.experts / D(run.ExpertTensor() * run.expert);
  const double replicas = D(run.data * run.context);
  const auto bytes = [&](double each, int64_t shared_from) {
    if (run.zero_stage < shared_from) return each * (dense + experts);
    return each * (dense / replicas + experts / D(run.ExpertReplicas()));
  };
  RunMemory memory;
  memory.parameters = bytes(kHalf, 3);
  memory.gradients = bytes(program.gradient_bytes, 2);
  memory.optimizer = bytes(kOptimizerBytes, 1);
  if (run.zero_stage > 0) {
    memory.copies = 2 * kHalf * std::min(memory.parameters / kHalf, program.copied_parameters);
  }
  memory.runtime = program.runtime_bytes;

  const bool recomputes = run.recomputation == Recomputation::kBlock;
  const double saved = SavedByBlock(stack, run);
  const double row = kHalf * Tokens(run) * StreamWidth(stack, run);
  // Blocks keep what they need, and the last one's result is kept as well.
  memory.activations =
      MicroBatchesInFlight(run, position) * (blocks * (recomputes ? row : saved) + row);
  const double again = recomputes                                       ? saved
                       : run.recomputation == Recomputation::kAttention ? ScoresOfBlock(stack, run)
                                                                        : 0;
  const double logits = is_last ? Tokens(run) * D(model.vocabulary) / tensor *
                                      (stack.fused_attention ? kFusedLogit : kPlainLogit)
                                : 0;
  // Logits are gone when the first block is made again, and activations when the optimizer copies
  // gradients to f32.
  const double casts = program.gradient_bytes < kF32 ? bytes(kF32, 1) : 0;
  const double passing = std::max(again, logits);
  memory.workspace = std::max(passing, casts - memory.activations);
  memory.cached = passing + casts - memory.workspace;
  if (run.zero_stage >= 3) {
    memory.workspace +=
        2 * kHalf * (block.dense / tensor + block.experts / D(run.ExpertTensor() * run.expert));
  }
  return memory;
}

RunMemory MemoryOf(const SoftwareStack& stack, const ClusterRun& run) {
  // The first rank has most micro-batches under way, the last one the logits, and one between them
  // may have a block more.
  RunMemory fullest = MemoryAt(stack, run, 0);
  for (const int64_t position : {run.pipeline / 2 > 0 ? int64_t{1} : 0, run.pipeline - 1}) {
    if (position == 0) continue;
    const RunMemory memory = MemoryAt(stack, run, position);
    if (memory.Total() > fullest.Total()) fullest = memory;
  }
  return fullest;
}

}  // namespace weft::planner
