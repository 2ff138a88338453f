#pragma once

#include "common/four_bit.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Whether model.weight_quantization quantises frozen weights,
inline bool QuantizesWeights(const ModelSpec& model) {
  return model.weight_quantization.type != "none";
}

/// and how.
FourBitFormat WeightFormatOf(const ModelSpec& model);

}  // namespace weft
