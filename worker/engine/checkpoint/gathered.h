#pragma once

#include <cstdint>
#include <string>

#include "common/env.h"
#include "common/status.h"
#include "worker/engine/checkpoint/epoch_fence.h"
#include "worker/engine/checkpoint/manifest.h"

namespace weft::engine {

/// Folder of a run in which the files of a checkpoint come together that several ranks have kept
/// elsewhere: work in progress of the attempt, as RemoveLeftovers knows it.
std::string GatherFolder(const std::string& run_dir, int64_t step, int64_t epoch);

/// Makes a checkpoint of what lies in the GatherFolder of manifest.step: all of manifest.files.
/// They are verified, published like any other checkpoint, and marked. A sound checkpoint of that
/// step that is there already is kept. kCorrupt when a file is not what its hash says, kConflict
/// when a newer attempt owns the folder; the folder is gone then, and all checkpoints are as they
/// were.
Status PublishGathered(Env& env, const std::string& run_dir, EpochFence& fence,
                       CheckpointManifest manifest);

}  // namespace weft::engine
