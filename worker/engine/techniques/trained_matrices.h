#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/nn/parameter_list.h"

namespace weft::engine {

/// Whether one of `patterns` (common/glob.h) names each parameter among the trained matrices of
/// blocks; without patterns it holds for all of these.
std::vector<bool> ChooseTrainedMatrices(const std::vector<std::string>& patterns,
                                        const ParameterList& parameters);

/// The derived parameters (ParameterList::Derive), equal shapes one after the other; in the same
/// order on all tensor-parallel ranks.
std::vector<int64_t> DerivedMatrices(const ParameterList& parameters);

}  // namespace weft::engine
