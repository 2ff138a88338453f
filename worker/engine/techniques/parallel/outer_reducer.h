#pragma once

#include <cstdint>

#include "worker/engine/techniques/parallel/data_parallel.h"

namespace weft::engine {

/// Sums what workers of several ranks have learned that have the same parameters each: of every
/// bucket each rank of a worker sums a part with those of the other workers that have this part,
/// and then they give each other what they have. Each number goes once between workers, however
/// many ranks these have.
class OuterReducer : public DataParallel {
 public:
  /// `workers`: ranks that have the same number in their workers; `worker`: those of this worker.
  /// They and `parameters` are as DataParallel has them.
  OuterReducer(Collective* workers, Collective* worker, const ParameterSet* parameters,
               int64_t bucket_bytes, Stream stream);

  Status Finish() override;

 private:
  /// The elements [begin, end) of a bucket.
  TensorView Part(int64_t bucket, int64_t begin, int64_t end) const;
  /// How many elements of a bucket each rank has; the last one has those that are left over, too.
  int64_t Share(int64_t bucket) const;
  Result<Work> Reduce(int64_t bucket) override;

  Collective* const worker_;
};

}  // namespace weft::engine
