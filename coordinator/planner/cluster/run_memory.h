#pragma once

#include "coordinator/planner/cluster/software_stack.h"
#include "coordinator/planner/cluster/step_model.h"

namespace weft::planner {

/// Bytes of the fullest rank of a run, tokens evenly spread over experts.
struct RunMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;  ///< AdamW with masters in f32.
  double activations = 0;
  double workspace = 0;  ///< Logits, and with ZeRO-3 the gathered parameters of two blocks.

  double Total() const { return parameters + gradients + optimizer + activations + workspace; }
};

/// What a block keeps of a micro-batch on a rank for its backward pass, with fused attention.
double SavedByBlock(const SoftwareStack& stack, const ClusterRun& run);

/// Of a run that PredictStep takes. Gradients are reduced as soon as they are there with ZeRO-2 and
/// above.
RunMemory MemoryOf(const SoftwareStack& stack, const ClusterRun& run);

}  // namespace weft::planner
