#pragma once

#include <cstdint>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// What model.low_rank_core trains in the place of `weight`, a W [out, in] = U V^T + M:
/// "<weight>.core_out" U^T [rank, out], "<weight>.core_in" V^T [rank, in] and "<weight>.rest" M
/// [out, in]. `weight` may be the part of a tensor-parallel rank: so are then one factor and M.
std::vector<ParameterInfo> CoreTensorsOf(const LowRankCoreSpec& spec, const ParameterInfo& weight);

/// kInvalid where the rank is none below both sides of `weight`.
Status CheckCoreRank(const LowRankCoreSpec& spec, const ParameterInfo& weight);

/// Whether `step` trains the core alone: the last one of each core_every.
inline bool IsCoreStep(const LowRankCoreSpec& spec, int64_t step) {
  return (step + 1) % spec.core_every == 0;
}

}  // namespace weft
