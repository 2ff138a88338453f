#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// Scores of the weights of some parameters, matrix by matrix, that a rank has gradients of
/// (ShardedMatrices::HeldGradient). All ranks compute them together.
using PruningScores = std::vector<std::vector<float>>;

/// SNIP (Lee et al. 2019, arXiv 1810.02340): |w dL/dw| on the batch of the step about to begin,
/// that is the derivative of the loss by the mask. Mean loss of the batch.
Result<PruningScores> ConnectionSensitivity(const TrainingParts& parts,
                                            std::span<const int64_t> parameters);

/// GraSP (Wang et al. 2020, arXiv 2002.07376): w (H g), half of what the square of the gradient's
/// norm loses with the weight, to first order. H g is a difference of gradients at w + e g and
/// w - e g, all on the batch of the step about to begin. May be negative.
Result<PruningScores> GradientFlow(const TrainingParts& parts, std::span<const int64_t> parameters);

}  // namespace weft::engine
