#pragma once

#include <string_view>

namespace weft {

/// Name of its metric, with the unit.
inline constexpr std::string_view kNoiseScaleMetric = "gradient_noise_scale_sequences";

}  // namespace weft
