#include "common/model/precision.h"

namespace weft {

/// Mixed precision (Micikevicius et al. 2018, arXiv 1710.03740): half keeps 3 bits more than bf16,
/// but small gradients would vanish in it, and large ones overflow.
const PrecisionRecipe kFp16Precision = {.name = "fp16",
                                        .activations = DType::kF16,
                                        .products = DType::kF16,
                                        .classifier = DType::kF16,
                                        .loss_scaling = true};

}  // namespace weft
