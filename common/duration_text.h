#pragma once

#include <string>

namespace weft {

/// "3m12s", "850ms", "2h05m", "12d07h"; "-" for what is negative or not finite.
std::string HumanDuration(double seconds);

}  // namespace weft
