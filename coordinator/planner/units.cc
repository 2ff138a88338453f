#include "coordinator/planner/units.h"

#include <cstdio>

namespace weft::planner {
namespace {

std::string Format(const char* format, double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return std::string(text) + " " + unit;
}

}  // namespace

std::string HumanSeconds(double seconds) {
  if (seconds <= 0) return "0 s";
  if (seconds >= 100) return Format("%.0f", seconds, "s");
  if (seconds >= 1) return Format("%.2f", seconds, "s");
  if (seconds >= 1e-3) return Format("%.1f", seconds * 1e3, "ms");
  return Format("%.0f", seconds * 1e6, "us");
}

std::string HumanCount(double count) {
  constexpr std::array<const char*, 7> kPrefixes = {"", " K", " M", " G", " T", " P", " E"};
  size_t prefix = 0;
  for (; count >= 999.5 && prefix + 1 < kPrefixes.size(); ++prefix) count /= 1000;
  char text[64];
  std::snprintf(text, sizeof(text), "%.3g%s", count, kPrefixes[prefix]);
  return text;
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
