#pragma once

#include <cstdint>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Whether a training has the same bits on any mesh (train.deterministic mesh).
inline bool IsMeshDeterministic(const TrainSpec& train) {
  return train.deterministic == "mesh";
}

/// Sequences of the micro-batches of such a training, whatever the mesh.
inline int64_t LogicalMicroBatch(const TrainSpec& train) {
  return train.logical_micro_batch > 0 ? train.logical_micro_batch : 1;
}

/// kInvalid names a field that keeps train.deterministic mesh, or logical_micro_batch, from being
/// obeyed: threads that are left open, micro-batches of other sizes, or a number of them, in a step
/// or on a rank, that makes no complete binary tree.
Status CheckDeterministicMesh(const JobSpec& job);

}  // namespace weft
