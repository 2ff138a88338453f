#pragma once

#include <cstdint>

#include "common/model/parameter_info.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {

/// How the weight [out, in] of a layer is here.
struct WeightPlace {
  Shard outputs = {};       ///< Which of its rows,
  Shard inputs = {};        ///< and columns.
  int64_t padded_rows = 0;  ///< Of storage, which an adapter with the same rows has too; 0: none.
};

/// Registers what `factory` has besides `weight`, the part that goes with the part of the weight
/// here. Returns how many tensors these are.
int64_t RegisterAdapters(ParameterSet* parameters, const ProductsFactory& factory,
                         const ParameterInfo& weight, const WeightPlace& place);

}  // namespace weft::engine
