#include "common/spec/deterministic_mesh.h"

#include <bit>
#include <string>

namespace weft {
namespace {

bool IsPowerOfTwo(int64_t value) {
  return std::has_single_bit(static_cast<uint64_t>(value));
}

/// The number of data-parallel ranks.
int64_t DataRanks(const ResourceSpec& resources) {
  return resources.ranks /
         (resources.tensor_parallel * resources.pipeline_parallel * resources.context_parallel);
}

}  // namespace

Status CheckDeterministicMesh(const JobSpec& job) {
  const TrainSpec& train = job.train;
  if (!IsMeshDeterministic(train)) {
    if (train.logical_micro_batch == 0) return OkStatus();
    return InvalidError("train.logical_micro_batch " + std::to_string(train.logical_micro_batch) +
                        " is of train.deterministic mesh, not " + train.deterministic +
                        "; hint: train.deterministic mesh, or leave it out");
  }
  const int64_t sequences = LogicalMicroBatch(train);
  const std::string batch = "train.global_batch " + std::to_string(train.global_batch);
  const std::string of_each = "train.logical_micro_batch " + std::to_string(sequences);
  const int64_t micro_batches = train.global_batch / sequences;
  if (train.global_batch % sequences != 0 || !IsPowerOfTwo(micro_batches)) {
    const int64_t odd =
        train.global_batch >> std::countr_zero(static_cast<uint64_t>(train.global_batch));
    return InvalidError(batch + " must be a power of two times " + of_each +
                        ", since train.deterministic mesh adds gradients in a complete binary tree"
                        "; hint: train.logical_micro_batch " +
                        std::to_string(odd));
  }
  const ResourceSpec& resources = job.resources;
  if (resources.threads_per_rank == 0) {
    return InvalidError(
        "train.deterministic mesh needs resources.threads_per_rank, since on some processors the "
        "order of the sums in small products follows the number of threads; hint: "
        "resources.threads_per_rank 2");
  }
  if (resources.micro_batch > 0 && resources.micro_batch != sequences) {
    return InvalidError("resources.micro_batch " + std::to_string(resources.micro_batch) +
                        " is not " + of_each +
                        ", which train.deterministic mesh has on every mesh; hint: leave it out");
  }
  const int64_t ranks = DataRanks(resources);
  if (resources.ranks > 0 && micro_batches % ranks != 0) {
    return InvalidError("the " + std::to_string(micro_batches) + " micro-batches of " + batch +
                        ", of " + of_each + " sequences each, are not shared evenly by " +
                        std::to_string(ranks) +
                        " data-parallel ranks, as train.deterministic mesh needs; hint: a power of "
                        "two of ranks, at most " +
                        std::to_string(micro_batches));
  }
  return OkStatus();
}

}  // namespace weft
