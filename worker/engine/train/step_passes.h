#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "kernels/step_value.h"
#include "worker/engine/autograd/parameter_gradients.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/techniques/technique_list.h"
#include "worker/engine/train/micro_batch_sums.h"
#include "worker/engine/train/part_losses.h"
#include "worker/engine/train/sequence_passes.h"
#include "worker/engine/train/step_clock.h"
#include "worker/engine/train/step_report.h"
#include "worker/engine/train/trainer_parts.h"

namespace weft::engine {

/// The forward and backward passes of a step, on the whole model or on the stages of a pipeline
/// rank. Reduction of the gradients over the ranks starts in the last backward pass. Not
/// thread-safe.
class StepPasses {
 public:
  /// All outlive this.
  StepPasses(const TrainerParts& parts, TechniqueList* techniques, StepClock* clock,
             SequencePasses* sequences, PartLosses* part_losses);

  /// Has `sums`, which outlives this, add up losses with train.deterministic mesh, and gradients,
  /// unless the reducer places them. Before the first step.
  void SumByMicroBatch(MicroBatchSums* sums);

  /// Enqueues those of all micro-batches: adds their loss to *total, memory of the device, and that
  /// of the parts of batches of several jobs to `part_losses`; leaves the gradients of
  /// gradient_scale times the sum of the losses. After SumByMicroBatch the loss is there instead.
  Status Run(std::vector<TokenBatch> batches, kernels::StepValue<float> gradient_scale,
             BatchLoss* total, PhaseSeconds& seconds);

  /// PipelineRun::peak_in_flight of the last step in a pipeline.
  int64_t peak_in_flight() const { return peak_in_flight_; }

 private:
  Status RunModel(std::vector<TokenBatch> batches, kernels::StepValue<float> gradient_scale,
                  BatchLoss* total, PhaseSeconds& seconds);
  Status RunPipeline(std::vector<TokenBatch> batches, kernels::StepValue<float> gradient_scale,
                     BatchLoss* total, PhaseSeconds& seconds);
  bool adds_gradients() const { return sums_ != nullptr && sums_->adds_gradients(); }
  /// The gradient of parameter `index` of a micro-batch is complete.
  Status OnGradient(int64_t index);
  /// The steps of a pipeline are over, and gradients that it has not used are to be zero.
  Status ClearUnused();

  TrainerParts parts_;
  TechniqueList* techniques_;
  StepClock* clock_;
  SequencePasses* sequences_;
  PartLosses* part_losses_;
  MicroBatchSums* sums_ = nullptr;  ///< Or none.
  ParameterGradients gradients_;
  int64_t peak_in_flight_ = 0;
};

}  // namespace weft::engine
