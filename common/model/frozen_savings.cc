#include "common/model/frozen_savings.h"

#include <algorithm>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_counts.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/model/step_extent.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

/// The job with its whole network trained, as it would be without adapters.
JobSpec TrainedWhole(JobSpec job) {
  job.model.freeze.clear();
  for (const TechniqueCost* technique : TechniqueCosts()) technique->TrainWhole(job.model);
  return job;
}

/// FLOPs of the gradients of the network's own weights, for each token.
double WeightGradientFlops(const ModelShape& shape, int64_t sequence_length) {
  constexpr int64_t kElementBytes = 4;  // It only cuts the classifier's rows.
  double flops = 0;
  for (const Gemm& gemm : WeightGemms(shape, sequence_length, sequence_length, kElementBytes)) {
    if (gemm.pass != GemmPass::kWeightGradient || gemm.of_adapter) continue;
    flops += ComputedShare(shape.computed, gemm.role) * gemm.Flops();
  }
  return flops / static_cast<double>(sequence_length);
}

int64_t ActivationBytes(const JobSpec& job, const Plan& plan) {
  // Of machines activations depend on the kind alone.
  const MemoryMachine machine = plan.device == "cuda" ? CudaMachine("9.0") : MemoryMachine();
  return PredictMemory(MemoryInputsOf(job, plan, machine)).activations_bytes;
}

}  // namespace

FrozenSavings SavingsOfFrozen(const JobSpec& job, const Plan& plan) {
  if (!FreezesAny(job.model)) return {};
  const JobSpec whole = TrainedWhole(job);
  const int64_t length = SequenceLength(job);
  const double skipped =
      WeightGradientFlops(ShapeOf(whole), length) - WeightGradientFlops(ShapeOf(job), length);
  const auto tokens = static_cast<double>(job.train.global_batch * length);
  FrozenSavings savings;
  savings.weight_gradient_flops = MeanStepOf(job).flops * tokens * std::max(skipped, 0.0);
  savings.activation_bytes =
      std::max<int64_t>(ActivationBytes(whole, plan) - ActivationBytes(job, plan), 0);
  return savings;
}

}  // namespace weft
