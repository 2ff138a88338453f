#include "common/model/precision.h"

#include <string>

#include "common/check.h"

namespace weft {

std::span<const PrecisionRecipe* const> AllPrecisions() {
  static const PrecisionRecipe* const kAll[] = {&kFp32Precision, &kBf16Precision, &kFp16Precision,
                                                &kBf16PurePrecision, &kFp8Precision};
  return kAll;
}

const PrecisionRecipe* FindPrecision(std::string_view name) {
  for (const PrecisionRecipe* recipe : AllPrecisions()) {
    if (recipe->name == name) return recipe;
  }
  return nullptr;
}

const PrecisionRecipe& PrecisionOf(std::string_view name) {
  const PrecisionRecipe* found = FindPrecision(name);
  WEFT_CHECK(found != nullptr, "no precision recipe '" + std::string(name) + "'");
  return *found;
}

std::string_view GemmRateName(DType products) {
  switch (products) {
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    default:
      return "fp32";
  }
}

}  // namespace weft
