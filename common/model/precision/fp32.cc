#include "common/model/precision.h"

namespace weft {

const PrecisionRecipe kFp32Precision = {.name = "fp32"};

}  // namespace weft
