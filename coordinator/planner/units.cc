#include "coordinator/planner/units.h"

#include "common/text.h"

namespace weft::planner {

std::string HumanSeconds(double seconds) {
  if (seconds <= 0) return "0 s";
  if (seconds >= 100) return FormatNumber("%.0f s", seconds);
  if (seconds >= 1) return FormatNumber("%.2f s", seconds);
  if (seconds >= 1e-3) return FormatNumber("%.1f ms", seconds * 1e3);
  return FormatNumber("%.0f us", seconds * 1e6);
}

std::string HumanCount(double count) {
  constexpr std::array<const char*, 7> kPrefixes = {"", " K", " M", " G", " T", " P", " E"};
  size_t prefix = 0;
  for (; count >= 999.5 && prefix + 1 < kPrefixes.size(); ++prefix) count /= 1000;
  return FormatNumber("%.3g", count) + kPrefixes[prefix];
}

std::array<TimeComponent, 6> Components(const TimeBreakdown& time) {
  return {{{"matrix products", time.gemm_seconds},
           {"memory-bound", time.memory_bound_seconds},
           {"recomputation", time.recompute_seconds},
           {"exposed communication", time.exposed_communication_seconds},
           {"optimizer", time.optimizer_seconds},
           {"overhead", time.overhead_seconds}}};
}

}  // namespace weft::planner
