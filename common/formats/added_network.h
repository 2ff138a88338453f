#pragma once

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Puts what `folder`/config.json says of train.value_learning.base, whose import_path the folder
/// is, into that field, and its vocabulary into job.model where the job leaves that open. Does
/// nothing without such a network. Doing it again changes nothing.
/// kInvalid, with the field of the job, when the folder cannot be read; when another field of the
/// network is neither its default nor what the folder says; when the network is no causal language
/// model, has another vocabulary than job.model, or fewer positions than the job's sequences.
Status ResolveAddedNetwork(Env& env, JobSpec& job);

}  // namespace weft
