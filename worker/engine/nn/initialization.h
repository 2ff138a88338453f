#pragma once

#include "common/spec/model_spec.h"
#include "worker/engine/nn/parameter_list.h"

namespace weft::engine {

/// Says how each parameter of a model starts and how fast it learns, by its role and shape and by
/// model.initialization: docs/techniques/initialization.md.
void SetStarts(const ModelSpec& spec, ParameterList& parameters);

/// Factor of attention logits, on top of 1 / sqrt(head size). It is 1, except with mup, which
/// divides them by the head size: sqrt(base_width / width), which is 1 at base_width (Yang et al.
/// 2022, arXiv 2203.03466). All widths have the same number of heads.
double AttentionLogitScale(const ModelSpec& spec);

/// Factor of the classifier's input: 1, with mup base_width / width.
double OutputScale(const ModelSpec& spec);

}  // namespace weft::engine
