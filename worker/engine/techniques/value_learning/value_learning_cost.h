#pragma once

#include <string_view>

namespace weft {

/// Metric of a step, of the values before its update.
inline constexpr std::string_view kLogitPenaltyMetric = "value_logit_penalty_nats";

}  // namespace weft
