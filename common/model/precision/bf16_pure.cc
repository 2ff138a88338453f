#include "common/model/precision.h"

namespace weft {

/// bf16 without f32 masters: rounding to nearest would drop the small updates, rounding
/// stochastically keeps their mean (Gupta et al. 2015, arXiv 1502.02551; Zamirai et al. 2020, arXiv
/// 2010.06192).
const PrecisionRecipe kBf16PurePrecision = {.name = "bf16_pure",
                                            .activations = DType::kBF16,
                                            .products = DType::kBF16,
                                            .classifier = DType::kBF16,
                                            .matrices = DType::kBF16};

}  // namespace weft
