#pragma once

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Puts what config.json in the folder of the network whose logits are added (AddedNetworkOf,
/// common/model/technique_cost.h) says of it into its field of the job, and its vocabulary into
/// job.model where the job leaves that open. Does nothing without such a network. A second call
/// changes nothing.
/// kInvalid, with the field of the job, when the folder cannot be read; when another field of the
/// network is neither its default nor what the folder says; when the network is no causal language
/// model, has another vocabulary than job.model, or fewer positions than the job's sequences.
Status ResolveAddedNetwork(Env& env, JobSpec& job);

}  // namespace weft
