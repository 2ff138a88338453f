#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/nn/parameter_list.h"

namespace weft::engine {

/// By parameter, whether one of `patterns` (common/glob.h) names it among the trained matrices of
/// blocks; without patterns all of these.
std::vector<bool> ChooseTrainedMatrices(const std::vector<std::string>& patterns,
                                        const ParameterList& parameters);

/// The derived parameters (ParameterList::Derive), equal shapes one after the other; in the same
/// order on all tensor-parallel ranks.
std::vector<int64_t> DerivedMatrices(const ParameterList& parameters);

}  // namespace weft::engine
