#pragma once

#include <string>

#include "weft/v1/coordinator.pb.h"

namespace weft::cli {

/// "1h 12m, 88.1 % of it useful; queued 1m 3s, starting 20.0 s, rework 2m 4s": what the time of a
/// job went to, without classes of less than a tenth of a second.
std::string TimeText(const v1::Ledger& ledger);

}  // namespace weft::cli
