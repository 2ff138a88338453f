#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/spec/plan.h"

namespace weft::planner {

/// "812 B", "3.5 MiB", "12.0 GiB".
std::string HumanBytes(int64_t bytes);

/// "1.25 s", "35.0 ms", "210 us".
std::string HumanSeconds(double seconds);

/// "999", "12.3 K", "124 M", "1.56 G": three digits with a decimal prefix.
std::string HumanCount(double count);

/// A part of a breakdown under the name people see.
struct MemoryComponent {
  std::string_view name;
  int64_t bytes = 0;
};
struct TimeComponent {
  std::string_view name;
  double seconds = 0;
};
std::array<MemoryComponent, 7> Components(const MemoryBreakdown& memory);
std::array<TimeComponent, 6> Components(const TimeBreakdown& time);
MemoryComponent LargestComponent(const MemoryBreakdown& memory);

}  // namespace weft::planner
