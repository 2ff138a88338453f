#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/spec/plan.h"

namespace weft {

/// "812 B", "3.5 MiB", "12.0 GiB".
std::string HumanBytes(int64_t bytes);

/// A part of a breakdown under the name people see.
struct MemoryComponent {
  std::string_view name;
  int64_t bytes = 0;
};
std::array<MemoryComponent, 8> Components(const MemoryBreakdown& memory);
MemoryComponent LargestComponent(const MemoryBreakdown& memory);

/// "3.0 GiB (activations 2.5 GiB, parameters 512 MiB)": the largest part first, and none that needs
/// nothing.
std::string MemoryText(const MemoryBreakdown& memory);

}  // namespace weft
