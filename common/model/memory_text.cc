#include "common/model/memory_text.h"

#include <algorithm>
#include <cstdio>

namespace weft {

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  char text[64];
  std::snprintf(text, sizeof(text), value < 100 ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
  return text;
}

std::array<MemoryComponent, 8> Components(const MemoryBreakdown& memory) {
  return {{{"parameters", memory.parameters_bytes},
           {"gradients", memory.gradients_bytes},
           {"optimizer", memory.optimizer_bytes},
           {"activations", memory.activations_bytes},
           {"workspace", memory.workspace_bytes},
           {"communication", memory.communication_bytes},
           {"snapshots", memory.snapshots_bytes},
           {"runtime", memory.runtime_bytes}}};
}

MemoryComponent LargestComponent(const MemoryBreakdown& memory) {
  const auto parts = Components(memory);
  return *std::max_element(parts.begin(), parts.end(),
                           [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
}

std::string MemoryText(const MemoryBreakdown& memory) {
  auto parts = Components(memory);
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string text;
  for (const MemoryComponent& part : parts) {
    if (part.bytes <= 0) continue;
    text += (text.empty() ? " (" : ", ") + std::string(part.name) + " " + HumanBytes(part.bytes);
  }
  return HumanBytes(TotalBytes(memory)) + (text.empty() ? "" : text + ")");
}

}  // namespace weft
