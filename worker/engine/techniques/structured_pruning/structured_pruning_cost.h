#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Metric of the steps that choose masks: share of the units whose place in the mask has changed
/// since the one before.
inline constexpr std::string_view kMaskDistanceMetric = "mask_distance_ratio";

/// The search ends when as many distances as this, one after the other, are small.
inline constexpr int64_t kSmallMaskDistances = 5;

/// Units of a sub-layer that stay or go together, each some successive columns of the weight that
/// ends it: heads with the keys and values that they read, or neurons.
struct PrunedUnits {
  int64_t count = 0;    ///< 0: nothing of the sub-layer is pruned.
  int64_t kept = 0;     ///< At least 1.
  int64_t columns = 0;  ///< Of a head or a neuron, which has one coefficient; as many to each unit.
  double penalty = 0;   ///< Of the magnitude of a coefficient.
};

/// The units of each block in front of a weight with this role.
PrunedUnits UnitsBefore(const ModelSpec& model, ParameterRole role);

/// What is trained in the place of `weight` W [out, in], which ends a sub-layer and may be the
/// columns that a tensor-parallel rank has: "<weight>.unscaled" [out, in], and
/// "<weight>.coefficients", a factor for each head's or neuron's columns of it; starts at 1. Empty
/// where nothing is pruned.
std::vector<ParameterInfo> CoefficientSources(const ModelSpec& model, const ParameterInfo& weight);

/// The model with what is kept of each block.
ModelSpec TicketModel(const ModelSpec& model);

/// In checkpoints: of a weight its mask, u8 [count]; of all that is trained, its first value.
StateName TicketMasks();
StateName InitialWeights();

}  // namespace weft
