#pragma once

#include <string>
#include <vector>

#include "common/env.h"
#include "common/spec/model_spec.h"
#include "common/status.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/named_tensor.h"

// The frozen network that checkpoints leave out (CheckpointManifest::base_tensors).

namespace weft::trainer {

/// Erases from `tensors`, which are state of `parameters`, the values of the frozen ones that
/// `base_tensors` names. What is saved, and what is loaded from the files, is the rest.
void EraseBase(const std::vector<std::string>& base_tensors, const engine::ParameterSet& parameters,
               std::vector<engine::NamedTensor>& tensors);

/// kInvalid where `folder` does not have the frozen network of the checkpoint in `checkpoint` any
/// more: it is gone, or its weight files are others. Reads them all. OK where the checkpoint leaves
/// nothing out.
Status CheckBase(Env& env, const std::string& checkpoint,
                 const engine::CheckpointManifest& manifest, const std::string& folder);

/// Fills the parameters that the checkpoint in `checkpoint` leaves out, or this rank's shards of
/// them, from `folder`; nothing where it leaves out none. `model` is what `parameters` are of.
/// Errors as CheckBase and engine::ImportBase.
Status ReadBase(Env& env, const std::string& checkpoint, const engine::CheckpointManifest& manifest,
                const std::string& folder, const ModelSpec& model,
                engine::ParameterSet& parameters);

}  // namespace weft::trainer
