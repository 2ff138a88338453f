#include "common/model/precision.h"

namespace weft {

// Products with the weights of blocks on scaled 8-bit operands (Micikevicius et al. 2022, arXiv
// 2209.05433), and bf16 for all else: embeddings, norms, attention, the classifier.
const PrecisionRecipe kFp8Precision = {.name = "fp8",
                                       .activations = DType::kBF16,
                                       .products = DType::kBF16,
                                       .classifier = DType::kBF16,
                                       .block_products = ProductFormat::kFp8};

}  // namespace weft
