#include "common/model/precision.h"

namespace weft {

/// Mixed precision (Micikevicius et al. 2018, arXiv 1710.03740) without its loss scale: bf16 has
/// the range of f32.
const PrecisionRecipe kBf16Precision = {.name = "bf16",
                                        .activations = DType::kBF16,
                                        .products = DType::kBF16,
                                        .classifier = DType::kBF16};

}  // namespace weft
