#pragma once

#include <array>
#include <string>
#include <string_view>

#include "common/model/memory_text.h"
#include "common/spec/plan.h"

namespace weft::planner {

/// "1.25 s", "35.0 ms", "210 us".
std::string HumanSeconds(double seconds);

/// "999", "12.3 K", "124 M", "1.56 G": three digits with a decimal prefix.
std::string HumanCount(double count);

/// A part of a breakdown under the name people see.
struct TimeComponent {
  std::string_view name;
  double seconds = 0;
};
std::array<TimeComponent, 6> Components(const TimeBreakdown& time);

}  // namespace weft::planner
