#pragma once

#include <string>

#include "common/spec/plan.h"

namespace weft::planner {

/// "1.23x": how many times as long.
std::string Factor(double value);

/// Why steps of `own` take longer than those of `best`: the part of their time that is longer by
/// most.
std::string WhySlower(const TimeBreakdown& own, const TimeBreakdown& best);

}  // namespace weft::planner
