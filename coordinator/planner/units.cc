#include "coordinator/planner/units.h"

#include <algorithm>
#include <cstdio>

namespace weft::planner {
namespace {

std::string Format(const char* format, double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return std::string(text) + " " + unit;
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return Format(value < 100 ? "%.1f" : "%.0f", value, kUnits[unit]);
}

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

std::array<MemoryComponent, 7> Components(const MemoryBreakdown& memory) {
  return {{{"parameters", memory.parameters_bytes},
           {"gradients", memory.gradients_bytes},
           {"optimizer", memory.optimizer_bytes},
           {"activations", memory.activations_bytes},
           {"workspace", memory.workspace_bytes},
           {"communication", memory.communication_bytes},
           {"runtime", memory.runtime_bytes}}};
}

std::array<TimeComponent, 6> Components(const TimeBreakdown& time) {
  return {{{"matrix products", time.gemm_seconds},
           {"memory-bound", time.memory_bound_seconds},
           {"recomputation", time.recompute_seconds},
           {"exposed communication", time.exposed_communication_seconds},
           {"optimizer", time.optimizer_seconds},
           {"overhead", time.overhead_seconds}}};
}

MemoryComponent LargestComponent(const MemoryBreakdown& memory) {
  const auto parts = Components(memory);
  return *std::max_element(parts.begin(), parts.end(),
                           [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
}

}  // namespace weft::planner
