#include "common/spec/peft_spec.h"

namespace weft {

std::span<const std::string_view> PeftMethods() {
  static constexpr std::string_view kMethods[] = {"none", "lora", "loha", "lokr",     "oft",
                                                  "vera", "ia3",  "miss", "selective"};
  return kMethods;
}

}  // namespace weft
