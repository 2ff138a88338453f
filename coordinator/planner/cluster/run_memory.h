#pragma once

#include <cstdint>

#include "coordinator/planner/cluster/software_stack.h"
#include "coordinator/planner/cluster/step_model.h"

namespace weft::planner {

/// Bytes of a rank, tokens evenly spread over experts.
struct RunMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;    ///< AdamW with masters in f32.
  double activations = 0;  ///< Of all micro-batches under way.
  double workspace = 0;    ///< What a block makes again, logits or the optimizer's copies, as far
                           ///< as they go beyond activations; and the two blocks ZeRO-3 gathers.
  double copies = 0;       ///< Flat buffers to reduce and gather.
  double runtime = 0;
  double cached = 0;  ///< Not in use with the rest, but given back only where memory is short: the
                      ///< optimizer's copies are one piece, which no freed activation has room for.

  double Total() const {
    return parameters + gradients + optimizer + activations + workspace + copies + runtime;
  }
  double Reserved() const { return Total() + cached; }  ///< As the driver reports it.
};

/// What a block keeps of a micro-batch on a rank for its backward pass. Where attention is not
/// fused: with scores, and masks of dropout (Korthikanti et al. 2022, section 4).
double SavedByBlock(const SoftwareStack& stack, const ClusterRun& run);

/// Memory of a rank at `position` of the pipeline, in a run that PredictStep takes. Gradients are
/// reduced as soon as they are there with ZeRO-2 and above.
RunMemory MemoryAt(const SoftwareStack& stack, const ClusterRun& run, int64_t position);

/// Memory of the fullest rank.
RunMemory MemoryOf(const SoftwareStack& stack, const ClusterRun& run);

}  // namespace weft::planner
