#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// Whether the method puts networks with a narrow middle (bottleneck adapters) at sub-layers.
bool HasBottlenecks(const PeftSpec& spec);

/// Whether a block has one at this sub-layer.
bool HasBottleneckAt(const ModelSpec& model, SubLayer sub_layer, int64_t block);

/// Width of their middle: model.width over model.peft.reduction_factor, at least 1.
int64_t BottleneckWidth(const ModelSpec& model);

/// The two layers of the one at the sub-layer that the layer `output`, or a mixture, ends.
struct BottleneckNames {
  std::string down, up;

  explicit BottleneckNames(const std::string& output)
      : down(output + ".adapter_down"), up(output + ".adapter_up") {}
};

/// The roles of its two layers: of products that read and make the same.
struct BottleneckRoles {
  ParameterRole down, up;

  BottleneckRoles(const PeftSpec& spec, SubLayer sub_layer);
};

/// See TechniqueCost::GraftsOf: "<layer>.adapter_down" [middle, width] and "<layer>.adapter_up"
/// [width, middle], each .weight and .bias. The layer is what ends the sub-layer: that of `weight`,
/// or the mixture whose router has it.
std::vector<ParameterInfo> BottleneckTensors(const ModelSpec& model, const ParameterInfo& weight);

/// See TechniqueCost::SavedByGrafts: the input, unless the sub-layer has saved it, and the middle;
/// and what the norm of a sum saves where the input is that.
int64_t SavedByBottlenecks(const ModelSpec& model, SubLayer sub_layer);

/// See TechniqueCost::RowsAfterMlp.
int64_t RowsOfBottlenecks(const ModelSpec& model);

/// See TechniqueCost::WorkspaceOfGrafts.
ProductNumbers WorkspaceOfBottlenecks(const ModelSpec& model, SubLayer sub_layer);

/// kInvalid where a field is of another method, or where nothing is left of the width.
Status CheckBottlenecks(const ModelSpec& model);

}  // namespace weft
