#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Batches of the training data whose loss is compared, of each size.
inline constexpr int64_t kComparedBatches = 16;

/// A size that a phase which searches may go on with.
struct PhaseSize {
  int64_t layers = 0;
  int64_t image_size = 0;  ///< As in ModelSpec, also of models without images.

  bool operator==(const PhaseSize&) const = default;
};

/// What `search` chooses from in a phase that has `model`: each number of layers with each size of
/// images, in the order of the job.
std::vector<PhaseSize> PhaseSizes(const PhaseSearchSpec& search, const ModelSpec& model);

/// The job of a phase (JobOfPhase) with another size.
JobSpec WithSize(const JobSpec& phase, const PhaseSize& size);

/// FLOPs of the mean step of phase `phase` of `job`, over those of a step of its largest choice: in
/// search.steps each choice is drawn as often as the others, and what is chosen then is taken to be
/// the largest. 1 without a search.
double SearchFlopsShare(const JobSpec& job, size_t phase);

/// kInvalid where the search of a phase does not fit the phases. JobOfPhase is its largest choice.
Status CheckSearch(const JobSpec& job, size_t phase);

}  // namespace weft
