#pragma once

#include <set>
#include <string>

#include "common/status.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// What CheckExchange has found; the same on every rank.
struct ExchangeCheck {
  std::string error;       ///< What is wrong; empty: nothing was found.
  std::set<int> suspects;  ///< Ranks of the group; empty where all are as suspect.
};

/// Checks, before a training, that what the ranks of a group send each other arrives as it was, and
/// that sums over them are right: of whole numbers, which are exact in any order of additions. All
/// ranks call it; it takes a gather and a sum of 64 KiB a rank at most. Suspect are the ranks whose
/// numbers came wrong, or where no numbers did those whose sums were wrong.
Result<ExchangeCheck> CheckExchange(Collective& group, Context& context);

}  // namespace weft::engine
