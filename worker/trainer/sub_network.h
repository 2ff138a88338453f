#pragma once

#include "common/status.h"
#include "worker/engine/models/model.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::trainer {

/// Has the weights that `model` is given from now on, or evaluates with, be those of the network
/// within it (TechniqueCost::SubNetworkOf).
void SelectSubNetwork(const engine::Model& model);

/// Fills `parameters` with the first rows and columns of those of `whole` that have their names.
/// kInvalid where one is larger than that; kNotFound where it is not there.
Status TakeFirst(const engine::ParameterSet& whole, engine::ParameterSet& parameters);

}  // namespace weft::trainer
