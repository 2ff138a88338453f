#pragma once

#include "common/model/sub_layer.h"
#include "common/model/technique_cost.h"
#include "common/spec/model_spec.h"

namespace weft {

/// What the products of lora, adalora, miss and ia3 want on one of `tensor_columns` ranks, see
/// TechniqueCost::WorkspaceOfProducts.
ProductNumbers WorkspaceOfAdapters(const ModelSpec& model, SubLayer sub_layer,
                                   int64_t tensor_columns);

}  // namespace weft
