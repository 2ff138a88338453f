#pragma once

#include <array>
#include <string_view>

/// Precisions by the names that jobs, plans and profiles have for them.
namespace weft {

/// What train.precision chooses among.
inline constexpr std::array<std::string_view, 6> kPrecisionChoices = {"fp32",      "bf16", "fp16",
                                                                      "bf16_pure", "fp8",  "auto"};
/// Precisions of a plan: the recipes (common/model/precision.h).
inline constexpr std::array<std::string_view, 5> kPrecisionNames = {"fp32", "bf16", "fp16",
                                                                    "bf16_pure", "fp8"};
/// What rates of products are measured and known by: the type or format of the operands.
inline constexpr std::array<std::string_view, 4> kProductRateNames = {"fp32", "bf16", "fp16",
                                                                      "fp8"};

}  // namespace weft
