#include "common/spec/phase_spec.h"

namespace weft {

std::span<const std::string_view> GrowthMethods() {
  static constexpr std::string_view kMethods[] = {
      "none", "coalesce", "decoalesce", "stack", "fpi", "aki", "msg", "ligo", "sparkling"};
  return kMethods;
}

}  // namespace weft
