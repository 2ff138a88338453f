#include "common/model/precision.h"

#include <string>
#include <vector>

#include "common/check.h"
#include "common/model/technique_cost.h"

namespace weft {

std::span<const PrecisionRecipe* const> AllPrecisions() {
  static const std::vector<const PrecisionRecipe*> all = [] {
    std::vector<const PrecisionRecipe*> recipes = {&kFp32Precision, &kBf16Precision,
                                                   &kFp16Precision, &kBf16PurePrecision};
    for (const TechniqueCost* technique : TechniqueCosts()) {
      if (technique->precision() != nullptr) recipes.push_back(technique->precision());
    }
    return recipes;
  }();
  return all;
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

FormatBlocks FormatBlocksOf(const PrecisionRecipe& precision, const TrainSpec& train) {
  return precision.block_products != nullptr ? precision.block_products->blocks(train)
                                             : FormatBlocks();
}

const ProductFormat* FindFormat(std::string_view rate_name) {
  for (const PrecisionRecipe* recipe : AllPrecisions()) {
    const ProductFormat* format = recipe->block_products;
    if (format != nullptr && format->rate_name == rate_name) return format;
  }
  return nullptr;
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
