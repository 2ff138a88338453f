#include "coordinator/planner/time_model.h"

#include <algorithm>

#include "common/model/model_counts.h"

namespace weft::planner {
namespace {

// Entering and leaving a parallel loop, checks, allocation; each thread adds to the barrier.
constexpr double kSecondsPerOperation = 4e-6;
constexpr double kSecondsPerOperationAndThread = 0.3e-6;
constexpr double kOperationsPerBlock = 26;         // forward and backward
constexpr double kForwardOperationsPerBlock = 10;  // of them
constexpr double kOperationsPerPass = 40;          // embedding, classifier, loading the batch
// One message between two ranks.
constexpr double kSecondsPerMessage = 60e-6;
// Share of the backward pass that can hide a collective: on a CPU it takes cores from compute.
constexpr double kOverlap = 0.5;

double D(int64_t value) {
  return static_cast<double>(value);
}

}  // namespace

PassCost CostOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                    const PrecisionRecipe& precision, double dropout, const RateModel& rates,
                    int64_t threads) {
  const int64_t tokens = micro_batch * sequence_length;
  const int64_t element = ElementBytes(precision.activations);
  PassCost cost;
  for (const Gemm& gemm : WeightGemms(shape, tokens, sequence_length, element)) {
    const double seconds = gemm.Flops() / rates.GemmFlopsPerSecond(gemm.m, gemm.n, gemm.k, threads);
    cost.gemm_seconds += seconds;
    if (gemm.pass != GemmPass::kForward) {
      cost.backward_gemm_seconds += seconds;
    } else if (gemm.name != "classifier") {
      cost.block_forward_gemm_seconds += seconds / D(shape.spec.layers);
    }
  }
  // Attention: 2 products forward, 5 backward (flash attention computes the scores again).
  const ModelSpec& model = shape.spec;
  const double product = TwiceTheKeys(model, sequence_length) * D(model.width) * D(tokens) /
                         rates.AttentionFlopsPerSecond(threads);
  const double backward_layers = D(model.layers - shape.first_trained_layer);
  cost.gemm_seconds += (2 * D(model.layers) + 5 * backward_layers) * product;
  cost.backward_gemm_seconds += 5 * backward_layers * product;
  cost.block_forward_gemm_seconds += 2 * product;

  // Bytes each token moves, in elements of its width c and of the MLP f. Forward, a norm reads two
  // and writes two, an activation reads its one or two inputs and writes one; backward, a norm
  // moves four and an activation twice as much, and the bias gradients read what the products read.
  const double c = D(model.width) * D(element), f = D(MlpWidth(model)) * D(element);
  const double activation = D(MlpInputs(model) + 1) * f;
  const double mask = dropout > 0 ? 2 * 2 * c : 0;  // two a block, read and write
  const double block_forward = 2 * 4 * c + activation + mask;
  const double biases = model.family == "llama" ? 0 : 5 * c + f;
  const double block_backward = 2 * 4 * c + 2 * activation + biases + mask;
  const double embedding = 3 * 4 * D(EmbeddingWidth(model)) + c;
  const double classifier =
      D(HeadRows(shape, tokens, sequence_length)) * (3 * D(shape.PaddedClasses()) * D(element));
  cost.block_forward_memory_bytes = D(tokens) * block_forward;
  cost.memory_bytes = D(tokens) * (D(model.layers) * block_forward +
                                   backward_layers * block_backward + 2 * embedding + 8 * c) +
                      classifier;
  const RateModel f32 = rates.With(DType::kF32);
  for (const Gemm& gemm : FactorGemms(shape)) {
    cost.factor_gemm_seconds +=
        gemm.Flops() / f32.GemmFlopsPerSecond(gemm.m, gemm.n, gemm.k, threads);
  }
  cost.weight_gradient_bytes = 4 * std::min(D(shape.packed), D(shape.trained));
  return cost;
}

TimeBreakdown PredictStep(const StepInputs& inputs, const PassCost& pass, const RateModel& rates) {
  const double passes = D(inputs.accumulation_steps);
  const double bandwidth = rates.MemoryBytesPerSecond(inputs.threads, inputs.ranks_on_worker);
  const double trained = D(inputs.shape.trained);
  const double matrices = D(inputs.shape.packed);
  const double per_operation =
      kSecondsPerOperation + kSecondsPerOperationAndThread * D(inputs.threads);

  TimeBreakdown time;
  time.gemm_seconds = passes * pass.gemm_seconds;
  const double packed = D(ElementBytes(inputs.precision->products));
  // Where the stored matrix is not of the products' type, the backward pass packs it once more.
  const double again = inputs.precision->matrices == inputs.precision->products ? 0 : 2 * packed;
  time.memory_bound_seconds = (passes * (pass.memory_bytes + matrices * again) +
                               (2 * passes - 1) * pass.weight_gradient_bytes) /
                              bandwidth;
  const double recomputed = passes * D(inputs.recomputed_blocks);
  time.recompute_seconds =
      recomputed * (pass.block_forward_gemm_seconds + pass.block_forward_memory_bytes / bandwidth +
                    kForwardOperationsPerBlock * per_operation);
  time.overhead_seconds = passes *
                          (D(inputs.shape.spec.layers) * kOperationsPerBlock + kOperationsPerPass) *
                          per_operation;
  // AdamW reads gradient and moments, writes the moments and updates the parameter; the norm reads
  // the gradients; packing reads each matrix and writes its copy.
  const double stored = D(ElementBytes(inputs.precision->matrices));
  // Mixing copies reads and writes the sum for each, and writes the gradient of each.
  const double mixed = inputs.shape.spec.over_parameterization.kind == "majority_kernels"
                           ? D(inputs.shape.factors)
                           : 0;
  const double optimizer_bytes = D(inputs.shape.Updated()) * (5 * 4 + 2 * stored + 4) +
                                 matrices * (stored + packed) + mixed * (4 * 4 + stored);
  time.optimizer_seconds = optimizer_bytes / bandwidth + pass.factor_gemm_seconds;

  if (inputs.ranks > 1) {
    const double bytes = 4 * trained, neighbours = D(inputs.ranks - 1);
    const double buckets = std::max(1.0, bytes / D(inputs.bucket_bytes));
    const double seconds = 2 * neighbours / D(inputs.ranks) * bytes /
                               rates.LinkBytesPerSecond(inputs.ranks == inputs.ranks_on_worker) +
                           std::max(1.0, buckets) * 2 * neighbours * kSecondsPerMessage;
    // Only the last pass reduces, and its last bucket has nothing to hide behind.
    const double hidden = kOverlap * pass.backward_gemm_seconds;
    time.exposed_communication_seconds = std::max(seconds - hidden, seconds / buckets);
  }
  return time;
}

}  // namespace weft::planner
