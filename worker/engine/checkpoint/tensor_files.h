#pragma once

#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Writes the tensors of one rank as a safetensors file of `folder`, durably.
Result<CheckpointFile> WriteTensorFile(Env& env, const std::string& folder, int64_t rank,
                                       int64_t world_size, const std::vector<NamedTensor>& tensors);

/// Fills `targets` from the checkpoint in `folder`, whose hashes have been verified. Its tensors
/// and the targets must be the same set, with equal types and shapes: kInvalid names the first that
/// is not; then the targets may be filled in part.
Status LoadTensors(Env& env, const std::string& folder, const CheckpointManifest& manifest,
                   const std::vector<NamedTensor>& targets);

}  // namespace weft::engine
