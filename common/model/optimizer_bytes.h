#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/spec/job_spec.h"

namespace weft {

/// Sums over the matrices that a training adds to the network
/// (TechniqueCost::AuxiliaryParametersOf), of one rank before data-parallel ranks shard them.
struct AuxiliaryParameters {
  int64_t numbers = 0;
  int64_t partial_gradients = 0;  ///< Numbers among them, as ModelShape::partial_gradients.
  int64_t value_bytes = 0;
  int64_t packed_bytes = 0;  ///< Of copies for products, with their padding.
  int64_t state_bytes = 0;   ///< Of rule and averages.

  /// The part of a pipeline stage that has `blocks` of all `of` blocks.
  AuxiliaryParameters OfStage(int64_t blocks, int64_t of) const;
};

/// Memory of the updates.
struct OptimizerBytes {
  int64_t state = 0;               ///< Of rule, averages and outer steps, without alignment.
  int64_t state_of_experts = 0;    ///< Of it, with expert parallelism, without what is next.
  int64_t replicated = 0;          ///< Of `state`: what ranks that shard updates all have.
  int64_t workspace = 0;           ///< While an update runs.
  int64_t in_file = 0;             ///< Numbers of state in a file, which `state` lacks.
  int64_t in_file_of_experts = 0;  ///< Of them, with expert parallelism.
  AuxiliaryParameters auxiliary;   ///< Not in `state`: PredictMemory adds it to each component.

  /// Numbers in a file of one rank of `shard_ranks` ranks that shard updates; `expert_ranks` of
  /// them are expert-parallel.
  int64_t InFileAmong(int64_t shard_ranks, int64_t expert_ranks) const {
    const int64_t alike = shard_ranks > expert_ranks ? shard_ranks / expert_ranks : 1;
    return (in_file - in_file_of_experts) / shard_ranks + in_file_of_experts / alike;
  }
};

/// Bytes of the three buffers through which numbers in a file pass
/// (worker/engine/optim/disk_adamw.h).
int64_t FileBufferBytes(int64_t numbers);

/// The memory of the optimizer of `job`, its averages of the weights and its outer steps. `model`
/// with vocab_size resolved; `products`: the type of the operands of matrix products; for one of
/// `tensor` tensor-parallel ranks, in a grid of `rows`, or of `expert_ranks` expert-parallel ones.
OptimizerBytes OptimizerBytesOf(const ModelSpec& model, const JobSpec& job, DType products,
                                int64_t tensor = 1, int64_t rows = 1, int64_t expert_ranks = 1);

}  // namespace weft
