#include "coordinator/planner/cluster/run_memory.h"

#include <algorithm>

namespace weft::planner {
namespace {

constexpr double kHalf = 2;  // bytes of bf16 and fp16
constexpr double kF32 = 4;
// Master and two moments.
constexpr double kOptimizerBytes = 3 * kF32;

double D(int64_t value) {
  return static_cast<double>(value);
}

double Tokens(const ClusterRun& run) {
  return D(run.micro_batch * run.model.sequence_length) / D(run.context);
}

/// Ranks that share what is not a product.
double StreamSharers(const SoftwareStack& stack, const ClusterRun& run) {
  return stack.sequence_parallel ? D(run.tensor) : 1;
}

/// Micro-batches whose activations the first stage has at once: one for each stage, and with
/// several stages a rank those of the warm-up (Narayanan et al. 2021, section 2.2).
double MicroBatchesUnderWay(const ClusterRun& run) {
  const double passes = D(run.global_batch) / D(run.data * run.micro_batch);
  const double stages = D(run.pipeline);
  const double more =
      run.stages_per_rank > 1 ? 1 + (stages - 1) / (stages * D(run.stages_per_rank)) : 1;
  return std::min(stages, passes) * more;
}

}  // namespace

double SavedByBlock(const SoftwareStack& stack, const ClusterRun& run) {
  const DecoderShape& model = run.model;
  const double width = D(model.width) / StreamSharers(stack, run), tensor = D(run.tensor);
  const double heads = D(2 * model.heads + 2 * model.key_heads) * D(model.HeadWidth()) / tensor;
  const double before = D(model.mlp_width) * (model.gated ? 2 : 1) / tensor;
  // The residual stream and the result of its norm, twice; queries, keys, values and what attention
  // makes of them.
  double halves = 4 * width + heads;
  // What norms keep, and the logarithms of attention's sums.
  double singles = (model.gated ? 2 : 4) + D(model.heads) / tensor;
  if (model.HasExperts()) {
    const double rows = model.RowsOfToken();
    // What experts read, what they have before their activation, and their results.
    halves += rows * (width + before) + D(model.experts_per_token) * width;
    singles += D(model.experts) + 3 * D(model.experts_per_token);
  } else {
    halves += before;
  }
  return Tokens(run) * (kHalf * halves + kF32 * singles);
}

RunMemory MemoryOf(const SoftwareStack& stack, const ClusterRun& run) {
  const DecoderShape& model = run.model;
  const double blocks = D(model.layers) / D(run.pipeline), tensor = D(run.tensor);
  const BlockParameters block = ParametersOfBlock(model);
  const double table = D(model.vocabulary * model.width);
  const double dense = (blocks * block.dense + table) / tensor;
  const double experts = blocks * block.experts / (tensor * D(run.expert));
  const double replicas = D(run.data * run.context);
  const auto bytes = [&](double each, int64_t shared_from) {
    if (run.zero_stage < shared_from) return each * (dense + experts);
    return each * (dense / replicas + experts * D(run.expert) / replicas);
  };
  RunMemory memory;
  memory.parameters = bytes(kHalf, 3);
  memory.gradients = bytes(stack.gradient_bytes, 2);
  memory.optimizer = bytes(kOptimizerBytes, 1);

  const double saved = SavedByBlock(stack, run);
  const double row = kHalf * Tokens(run) * D(model.width) / StreamSharers(stack, run);
  const bool recomputes = run.recomputation == Recomputation::kBlock;
  const auto activations = [&](double micro_batches) {
    return micro_batches * blocks * (recomputes ? row : saved) + (recomputes ? saved : 0);
  };
  // The last stage has one micro-batch and its logits, in half precision and in f32.
  const double logits = Tokens(run) * D(model.vocabulary) / tensor * (kHalf + kF32);
  const double first = activations(MicroBatchesUnderWay(run)), last = activations(1);
  const bool at_the_end = run.pipeline == 1 || last + logits > first;
  memory.activations = at_the_end ? last : first;
  memory.workspace = at_the_end ? logits : 0;
  if (run.zero_stage >= 3) {
    memory.workspace += 2 * kHalf * (block.dense + block.experts / D(run.expert)) / tensor;
  }
  return memory;
}

}  // namespace weft::planner
