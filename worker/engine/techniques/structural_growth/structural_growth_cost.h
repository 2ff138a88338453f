#pragma once

#include "common/model/sub_layer.h"
#include "common/spec/phases.h"

namespace weft {

/// What of a network growth has added, and masks at first (MaskedGrowth).
struct AddedParts {
  bool columns = false;  ///< Of the residual stream.
  bool heads = false;
  bool neurons = false;
  bool blocks = false;

  AddedParts(const ModelSpec& before, const ModelSpec& now);

  /// Whether the product that ends such a sub-layer reads columns that were added.
  bool inputs(SubLayer sub_layer) const {
    return sub_layer == SubLayer::kAttention ? heads : neurons;
  }
};

}  // namespace weft
