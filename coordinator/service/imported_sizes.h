#pragma once

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft::coordinator {

/// Where a user is sent whose job names files that are not allowed.
inline constexpr const char* kRootsHint =
    "--data-root of weft-coordinator or `weft up` says which are";

/// Puts the sizes of an imported model, from its config.json, into the job; the planner needs them.
/// kInvalid when that cannot be read.
Status ResolveImport(Env& files, JobSpec& spec);

}  // namespace weft::coordinator
