#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"
#include "kernels/stream.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Writes the tensors of one rank as a safetensors file of `folder`, durably. Of parts it says in
/// the file's metadata where they belong; empty ones are left out.
Result<CheckpointFile> WriteTensorFile(Env& env, const std::string& folder, int64_t rank,
                                       int64_t world_size, const std::vector<NamedTensor>& tensors);

/// What a checkpoint may hold beyond what is asked for.
enum class ExtraTensors : uint8_t {
  kRefuse,  ///< Resuming: all state counts.
  kIgnore,  ///< Export and generation: the weights are enough.
};

/// Fills `targets` from the checkpoint in `folder`, whose hashes have been verified. Each must be
/// there with equal type and shape, in one piece or in parts cut anywhere; a target that is a part
/// itself takes its own of them. kInvalid names the first that is not; then the targets may be
/// filled in part. With kIgnore bf16 may also be read as f32, which is exact. `stream`: of the
/// device that targets are on.
Status LoadTensors(Env& env, const std::string& folder, const CheckpointManifest& manifest,
                   const std::vector<NamedTensor>& targets,
                   ExtraTensors extra = ExtraTensors::kRefuse, const Stream& stream = {});

}  // namespace weft::engine
