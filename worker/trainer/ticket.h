#pragma once

#include <string>

#include "common/env.h"
#include "common/model/technique_cost.h"
#include "common/status.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::trainer {

/// Fills the parameters of `ticket.model` with what the masks of a checkpoint keep of `whole`, the
/// model that was trained. kInvalid when the checkpoint has no masks yet.
Status LoadTicket(Env& env, const std::string& folder, const engine::CheckpointManifest& manifest,
                  const ExportedTicket& ticket, const engine::ParameterSet& whole,
                  engine::ParameterSet& parameters);

}  // namespace weft::trainer
