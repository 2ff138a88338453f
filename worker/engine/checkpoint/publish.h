#pragma once

#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"
#include "worker/engine/checkpoint/epoch_fence.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/checkpoint/peers.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Makes the checkpoint folder durable from the run folder down, and removes leftovers. Once per
/// attempt, after the epoch was claimed.
Status PrepareCheckpointsFolder(Env& env, const std::string& run_dir);

/// Writes and publishes the checkpoint of manifest.step; returns the manifest with its files. With
/// `peers` this is rank 0, and the checkpoint has a file of each of them. A
/// crash or error at any point leaves it whole or invisible, and all others as they were. Where a
/// sound checkpoint of this step exists already it is kept, a damaged one is replaced. kConflict
/// when a newer attempt owns the folder, kExhausted when the disk is full.
Result<CheckpointManifest> PublishCheckpoint(Env& env, const std::string& run_dir,
                                             EpochFence& fence, CheckpointManifest manifest,
                                             const std::vector<NamedTensor>& tensors,
                                             CheckpointPeers* peers = nullptr);

/// The share of another rank in that: its file, where rank 0 wants it.
Status WriteShare(Env& env, const std::string& run_dir, int64_t epoch, int64_t step,
                  const std::vector<NamedTensor>& tensors, CheckpointPeers& peers);

}  // namespace weft::engine
