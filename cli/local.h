#pragma once

#include <string>

namespace weft::cli {

/// Address of the coordinator that `weft up` started from this home folder, or "".
std::string LocalServer();

}  // namespace weft::cli
