#pragma once

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Looks at the headers of the weights that a job starts from or adds to its own: CheckStartWeights
/// and CheckAddedWeights. `missing_is_error`: a folder without any form of weights is refused, too;
/// otherwise the workers look for them. kInvalid names the field, the folder and what it holds
/// instead. The job is a resolved one (ResolveImportedModel).
Status CheckImportedWeights(Env& env, const JobSpec& job, bool missing_is_error);

/// Checks the weights in the folders of model.import_path and model.peft.import_path, which a
/// checkpoint replaces.
Status CheckStartWeights(Env& env, const JobSpec& job, bool missing_is_error);

/// Checks the weights in the folder of an added network (AddedNetworkOf), which no checkpoint
/// holds.
Status CheckAddedWeights(Env& env, const JobSpec& job, bool missing_is_error);

}  // namespace weft
