#include "common/duration_text.h"

#include <cmath>
#include <cstdio>

#include "common/text.h"

namespace weft {

std::string HumanDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 1) return FormatNumber("%.0fms", seconds * 1e3);
  if (seconds < 60) return FormatNumber("%.1fs", seconds);
  auto whole = static_cast<long long>(std::llround(seconds));
  char text[48];
  if (whole < 3600) {
    std::snprintf(text, sizeof(text), "%lldm%02llds", whole / 60, whole % 60);
  } else if (whole < 48 * 3600) {
    std::snprintf(text, sizeof(text), "%lldh%02lldm", whole / 3600, whole / 60 % 60);
  } else {
    std::snprintf(text, sizeof(text), "%lldd%02lldh", whole / 86400, whole / 3600 % 24);
  }
  return text;
}

}  // namespace weft
