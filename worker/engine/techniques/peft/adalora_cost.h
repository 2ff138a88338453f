#pragma once

#include <cstdint>

#include "common/model/technique_cost.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether ranks move between the layers (AdaLoRA, Zhang et al. 2023, arXiv 2303.10512).
inline bool IsAdaLora(const PeftSpec& spec) {
  return spec.method == "adalora";
}

/// kInvalid where model.peft.adalora does not fit the steps of the training, has no ranks to take
/// away, or where gradients have a loss scale.
Status CheckAdaLora(const JobSpec& job);

/// Adds what the orthogonality of the factors and the scores of their numbers want in each step.
void AddAdaLoraWork(const ModelSpec& model, StepWork& work);

/// TechniqueCost::TrainedPasses: their products first, which all factors are weighed by, then their
/// gradients.
inline int64_t AdaLoraPasses(const AdaLoraSpec& spec) {
  return spec.orth_reg_weight > 0 ? 2 : 0;
}

/// Numbers in f32 that work on a factor, after the passes of a step, wants at most.
int64_t AdaLoraWorkspace(const ModelSpec& model);

}  // namespace weft
