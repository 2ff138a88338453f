#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/engine/nn/parameter_list.h"

namespace weft::engine {

/// How one parameter differs from the others in an update.
struct ParameterRule {
  double learning_rate_scale = 1;
  double weight_decay = 0;
};

/// Place of each parameter between the input and the output of its network: 0 for what comes
/// before the blocks (embeddings), i + 1 for block i, and one more than the last block for what
/// comes after them.
std::vector<int64_t> LayersOf(const ParameterList& parameters);

/// A rule for each parameter of `parameters`. The rate is scaled by the parameter's own factor
/// (mup; where decay is decoupled from the gradient it is not scaled along, except of parameters
/// with decay_follows_rate), by that of its peak, by optimizer.layer_decay^(layers above) (Clark et
/// al. 2020, arXiv 2003.10555) and by the first of optimizer.groups that names it. Matrices decay
/// by optimizer.weight_decay, norms and biases not at all; a group's weight_decay holds for all it
/// names. kInvalid when a pattern names no parameter of any rank; the name of a derived one means
/// its sources.
Result<std::vector<ParameterRule>> ResolveParameterRules(const OptimizerSpec& spec,
                                                         const ParameterList& parameters);

}  // namespace weft::engine
