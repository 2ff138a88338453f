#pragma once

#include <string>

#include "common/env.h"
#include "common/status.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::trainer {

/// Fills `parameters` with what the training of a checkpoint has come to: the averaged weights
/// where its job averages them and there were updates enough, the initial weights where it searches
/// for a ticket (LoadTicket), otherwise the weights themselves.
/// Errors as engine::LoadTensors.
Status LoadTrainedWeights(Env& env, const std::string& folder,
                          const engine::CheckpointManifest& manifest,
                          engine::ParameterSet& parameters);

}  // namespace weft::trainer
