#include "coordinator/planner/step_time.h"

#include <algorithm>

#include "common/model/technique_cost.h"
#include "common/number.h"
#include "coordinator/planner/gradient_exchange.h"
#include "coordinator/planner/host_transfer_time.h"
#include "coordinator/planner/model_parallel_time.h"

namespace weft::planner {
namespace {

// Casts of the four products of a block to and from operands in a format.
constexpr double kForwardCasts = 4;
constexpr double kBackwardCasts = 8;
constexpr double kExpertShareOfCasts = 0.5;  // two of the four products, of each expert

/// Operations of a step.
struct StepOperations {
  double passes = 0;      ///< Of its passes,
  double recomputed = 0;  ///< and of blocks that they recompute, in addition.
  double forwards = 0;    ///< Forward passes of blocks.
};

/// Operations that a block of experts has in addition to a dense one.
double OperationsOfExperts(const ModelShape& shape, double routing, double of_expert) {
  if (shape.spec.experts == 0) return 0;
  return routing + (D(shape.spec.experts / shape.expert_ranks) - 1) * of_expert;
}

StepOperations OperationsOf(const StepInputs& inputs, const PassCost& pass,
                            const OperationCounts& counts) {
  const ModelShape& shape = inputs.shape;
  const double layers = D(shape.spec.layers);
  const double passes = D(inputs.accumulation_steps);
  const double recomputed = passes * D(inputs.recomputed_blocks);
  const double casts = pass.format_share * (1 + OperationsOfExperts(shape, 0, kExpertShareOfCasts));
  const double forward =
      counts.forward + OperationsOfExperts(shape, counts.forward_routing, counts.forward_expert);
  const double backward =
      counts.backward + OperationsOfExperts(shape, counts.backward_routing, counts.backward_expert);
  const double of_forward = forward + casts * kForwardCasts;
  const double of_block =
      (1 + pass.scoring_passes) * of_forward + backward + casts * kBackwardCasts;
  return {.passes = passes * (layers * pass.computed_share * of_block + counts.pass),
          .recomputed = recomputed * of_forward,
          .forwards = passes * (1 + pass.scoring_passes) * layers + recomputed};
}

/// Seconds of what is recomputed.
double RecomputeSeconds(const StepInputs& inputs, const PassCost& pass, const StepRates& rates) {
  const RankPlace place = inputs.place();
  const OperationCounts& counts = rates.operations();
  const double operation = rates.CostsOfOperations(place).operation_seconds;
  const double passes = D(inputs.accumulation_steps);
  const double block = pass.block_forward_gemm_seconds +
                       pass.block_forward_memory_bytes / rates.MemoryBytesPerSecond(place) +
                       counts.forward * operation;
  const double attention = pass.attention_forward_gemm_seconds + counts.attention * operation;
  return passes * D(inputs.recomputed_blocks) * block +
         passes * D(inputs.recomputed_attentions) * attention;
}

/// Seconds of operations as such, beyond the `computing` seconds of what they compute. Where they
/// are launched ahead, the device waits only for what launching takes longer than computing.
double OverheadSeconds(const StepInputs& inputs, const PassCost& pass, double computing,
                       const StepRates& rates) {
  const StepOperations operations = OperationsOf(inputs, pass, rates.operations());
  const OperationCosts costs = rates.CostsOfOperations(inputs.place());
  const double launching = (operations.passes + operations.recomputed) * costs.launch_seconds;
  double seconds = operations.passes * costs.operation_seconds +
                   std::max(0.0, launching - computing) + rates.step_seconds();
  if (inputs.shape.spec.experts > 0) seconds += operations.forwards * costs.expert_wait_seconds;
  return seconds;
}

/// With local_steps, a step's share of the seconds of an outer step, except what ranks exchange.
double OuterStepSeconds(const StepInputs& inputs, const StepRates& rates) {
  if (inputs.local_steps == 1) return 0;
  // What was learned is the difference of two numbers, the momentum is updated and the parameters
  // with it; these are copied to where they are trained.
  const double stored = D(ElementBytes(inputs.precision->matrices));
  const double bytes = D(inputs.shape.trained) * ((stored + 4) + 3 * 4 + 5 * 4 + (4 + stored));
  return bytes / rates.UpdateBytesPerSecond(inputs.place(), inputs.offloads_optimizer) /
         D(inputs.local_steps);
}

/// Seconds in which the device makes operands of the matrices that have come up from the host: of
/// streamed ones in each forward and backward pass, of the others once a step.
struct UploadedOperandSeconds {
  double passes = 0;
  double update = 0;
};

UploadedOperandSeconds SecondsOfUploadedOperands(const StepInputs& inputs,
                                                 const OperandCopies& copies,
                                                 const StepRates& rates) {
  const double once =
      D(inputs.shape.packed) * copies.uploaded / rates.MemoryBytesPerSecond(inputs.place());
  const double streamed = D(inputs.streamed.forward);
  const double share = streamed > 0 ? streamed / (streamed + D(inputs.resident_weight_bytes)) : 0;
  return {.passes = 2 * D(inputs.accumulation_steps) * share * once, .update = (1 - share) * once};
}

/// Bytes that merging weights once reads and writes besides its products.
double MergeBytes(const StepInputs& inputs, const PassCost& pass) {
  return 4 * pass.merge_f32_numbers +
         D(ElementBytes(inputs.precision->matrices)) * pass.merge_parameter_numbers;
}

/// Seconds of the update. AdamW reads gradient and moments, writes the moments and updates the
/// parameter; the norm reads the gradients; then matrices are copied for products.
double UpdateSeconds(const StepInputs& inputs, const PassCost& pass, const OperandCopies& copies,
                     const StepRates& rates) {
  const double stored = D(ElementBytes(inputs.precision->matrices));
  // Those frozen matrices are packed anew that are merged with what is trained.
  const double renewed = D(inputs.shape.packed - inputs.shape.only_multiplied +
                           MergedNumbers(inputs.shape.spec) / inputs.shape.tensor);
  const double bytes = inputs.Updated() * (5 * 4 + 2 * stored + 4) + renewed * copies.update +
                       4 * pass.step_f32_numbers + stored * pass.step_parameter_numbers;
  // Weights of ranks that gather them are merged and packed in the passes.
  const double merges = inputs.SharesParameters() ? 0 : 1;
  const double rate = rates.UpdateBytesPerSecond(inputs.place(), inputs.offloads_optimizer);
  return UpdateSecondsWithFiles(inputs, pass,
                                (bytes + merges * MergeBytes(inputs, pass)) / rate +
                                    pass.step_product_seconds +
                                    merges * (pass.merge_product_seconds + pass.packing_seconds),
                                rates);
}

TimeBreakdown PredictStepOfRound(const StepInputs& inputs, const PassCost& alone,
                                 const StepRates& rates) {
  const RankPlace place = inputs.place();
  const PassCost pass = SlowedBy(alone, rates.Slowdown(place));
  const double passes = D(inputs.accumulation_steps);
  const double matrices = D(inputs.shape.packed);
  const double bandwidth = rates.MemoryBytesPerSecond(place);
  const OperandCopies copies = rates.CopiesOf(*inputs.precision, pass.format_share,
                                              inputs.SharesParameters(), inputs.offloads_optimizer);
  TimeBreakdown time;
  time.gemm_seconds = passes * pass.gemm_seconds;
  time.memory_bound_seconds =
      (passes * (pass.memory_bytes + 2 * D(inputs.compressed_bytes) + matrices * copies.backward) +
       (passes + inputs.GradientReads(passes)) * pass.weight_gradient_bytes) /
          bandwidth +
      (2 * passes * (matrices * copies.gathered) +
       (2 + pass.scoring_passes) * passes * D(inputs.shape.quantized) * copies.dequantized) /
          bandwidth;
  if (inputs.SharesParameters()) {
    const double merges = (2 + pass.scoring_passes) * passes;
    time.gemm_seconds += merges * (pass.merge_product_seconds + pass.gathered_list_seconds);
    time.memory_bound_seconds += merges * MergeBytes(inputs, pass) / bandwidth;
  }
  const UploadedOperandSeconds uploaded = SecondsOfUploadedOperands(inputs, copies, rates);
  time.memory_bound_seconds += uploaded.passes;
  time.recompute_seconds = RecomputeSeconds(inputs, pass, rates);
  const double computing = time.gemm_seconds + time.memory_bound_seconds + time.recompute_seconds;
  time.overhead_seconds = OverheadSeconds(inputs, pass, computing, rates);
  time.optimizer_seconds = UpdateSeconds(inputs, pass, copies, rates);
  if (inputs.offloads_optimizer) {
    time.exposed_communication_seconds =
        StateTransferSeconds(inputs, pass, time.optimizer_seconds, rates);
  }
  time.optimizer_seconds += OuterStepSeconds(inputs, rates) + uploaded.update;
  time.exposed_communication_seconds +=
      PassTransferSeconds(inputs, pass, time.recompute_seconds, rates);
  time.exposed_communication_seconds += GradientExchangeSeconds(inputs, pass, rates);
  time.exposed_communication_seconds += ModelParallelSeconds(inputs, alone, rates);
  return time;
}

}  // namespace

TimeBreakdown PredictStep(const StepInputs& inputs, const PassCost& pass, const StepRates& rates) {
  if (inputs.round_seconds == 0) return PredictStepOfRound(inputs, pass, rates);
  // The outer step follows the round: it takes none of the time for steps.
  constexpr double kEndless = 1e12, kFewest = 2;
  StepInputs round = inputs;
  round.local_steps = static_cast<int64_t>(kEndless);
  const double alone = StepSeconds(PredictStepOfRound(round, pass, rates));
  round.local_steps =
      static_cast<int64_t>(std::clamp(inputs.round_seconds / alone, kFewest, kEndless));
  return PredictStepOfRound(round, pass, rates);
}

void Mix(const TimeBreakdown& time, double share, TimeBreakdown& mean) {
  for (double TimeBreakdown::*part :
       {&TimeBreakdown::gemm_seconds, &TimeBreakdown::memory_bound_seconds,
        &TimeBreakdown::recompute_seconds, &TimeBreakdown::exposed_communication_seconds,
        &TimeBreakdown::optimizer_seconds, &TimeBreakdown::overhead_seconds}) {
    mean.*part += share * (time.*part - mean.*part);
  }
}

}  // namespace weft::planner
