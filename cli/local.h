#pragma once

#include "cli/client.h"

namespace weft::cli {

/// How to reach the coordinator that `weft up` started from this home folder; without one its
/// address is empty.
ServerAccess LocalAccess();

}  // namespace weft::cli
