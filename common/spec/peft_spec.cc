#include "common/spec/peft_spec.h"

namespace weft {

std::span<const std::string_view> PeftMethods() {
  static constexpr std::string_view kMethods[] = {
      "none", "lora",    "adalora",  "loha",     "lokr",   "oft",      "vera",   "miss",
      "ia3",  "houlsby", "pfeiffer", "parallel", "prompt", "p_tuning", "prefix", "selective"};
  return kMethods;
}

}  // namespace weft
