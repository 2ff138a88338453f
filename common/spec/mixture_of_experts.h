#pragma once

#include <string>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether a model with model.experts can be trained as the job says. kInvalid names what does not
/// go with it. An imported model is looked at once its sizes are known.
Status CheckMixtureOfExperts(const JobSpec& job);

/// What trains otherwise than one may think, though it is possible; empty: nothing.
std::string RouterWarning(const ModelSpec& model);

/// Whether resources.expert_parallel goes with the job, with the sizes of the model known.
Status CheckExpertParallel(const JobSpec& job);

/// Whether ranks can share the experts where model.freeze is as it is: of the experts of a layer it
/// leaves all to be trained, or none. With the sizes of the model known.
Status CheckFrozenExperts(const ModelSpec& model);

}  // namespace weft
