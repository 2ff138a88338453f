#pragma once

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Looks at the headers of the weights that a job starts from or adds to its own: those in the
/// folders of model.import_path and of an added network (AddedNetworkOf). `missing_is_error`: a
/// folder without any form of weights is refused, too; otherwise the workers look for them.
/// kInvalid names the field, the folder and what it holds instead.
Status CheckImportedWeights(Env& env, const JobSpec& job, bool missing_is_error);

}  // namespace weft
