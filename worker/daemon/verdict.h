#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "weft/v1/coordinator.pb.h"

namespace weft::daemon {

/// How one rank ended without success, before its peers were killed for it.
struct RankFailure {
  int rank = 0;
  std::optional<Status> reported;  ///< What the rank said itself, if it could.
  int wait_status = 0;             ///< As of waitpid(2); 0 while it has not ended.
};

/// What is reported of a failed attempt.
struct Verdict {
  v1::Reason reason = v1::RANK_DIED;
  std::string message;
  int rank = 0;
  int exit_status = 0;
  int signal = 0;
};

/// The cause among failures that happened within a moment of each other: when one rank dies, the
/// others fail too, with a broken connection, and may say so first. A rank taken by a signal comes
/// before one that reported an error of its own, before one that left without a word, before those
/// that only lost a peer; among equals the first in the list. `out_of_memory`: the kernel's
/// out-of-memory killer took a process meanwhile.
Verdict JudgeFailures(const std::vector<RankFailure>& failures, bool out_of_memory);

}  // namespace weft::daemon
