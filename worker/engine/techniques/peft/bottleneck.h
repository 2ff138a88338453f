#pragma once

#include <cstdint>
#include <optional>

#include "common/spec/model_spec.h"
#include "worker/engine/nn/graft.h"

namespace weft::engine {

/// Puts what model.peft has at a sub-layer there, where it has a bottleneck adapter: two layers
/// with an activation between them. houlsby (Houlsby et al. 2019, arXiv 1902.00751) adds what they
/// make of attention's and the MLP's results to these, after dropout. pfeiffer (Pfeiffer et al.
/// 2020, arXiv 2005.00052) adds to the MLP's result what they make of its sum with the residual
/// stream, or of the norm of that sum in a network with post-norms. parallel (He et al. 2021, arXiv
/// 2110.04366) adds what they make of the MLP's input, times model.peft.scaling. Returns the index
/// of the weight that is drawn; the others start at zero.
std::optional<int64_t> PutBottleneck(const ModelSpec& model, const GraftSite& site, Grafts& grafts);

}  // namespace weft::engine
