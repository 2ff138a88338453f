#pragma once

#include <functional>
#include <string>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether expert-parallel ranks can divide the experts, as CheckExpertParallel says. An imported
/// model is looked at once its sizes are known.
Status CheckMixtureOfExperts(const JobSpec& job);

/// Whether the fields of experts fit each other. kInvalid names them.
Status CheckExperts(const ModelSpec& model);

/// Warns of what trains otherwise than one may think, though it is possible; empty: nothing does.
std::string RouterWarning(const ModelSpec& model);

/// Whether resources.expert_parallel divides the experts, the ranks and the batch of the job, with
/// the sizes of the model known. kInvalid names the size that it does not divide.
Status CheckExpertParallel(const JobSpec& job);

/// "A and not B": two matrices of one layer's experts, where `names` is true of only the first.
/// Empty: it is true of all experts of a layer, or of none. With the sizes of the model known.
std::string UnevenExperts(const ModelSpec& model,
                          const std::function<bool(const std::string& parameter)>& names);

/// UnevenExperts for the parameters that model.freeze names.
std::string UnevenFreeze(const ModelSpec& model);

}  // namespace weft
