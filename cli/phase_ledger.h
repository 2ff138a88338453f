#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/output.h"
#include "weft/v1/coordinator.pb.h"

namespace weft::cli {

/// What a phase of a job has taken so far.
struct PhaseAccount {
  std::string title;                      ///< "phase 2 of 3 (small)".
  std::string state;                      ///< "complete", "now" or "to come".
  int64_t done_steps = 0;                 ///< Of its own.
  int64_t steps = 0;                      ///< Of its own.
  double tokens = 0;                      ///< Trained on, in steps that count.
  double flops = 0;                       ///< Of these, without recomputation.
  double seconds = 0;                     ///< Of all its attempts; without what they waited for.
  std::optional<double> start_loss_nats;  ///< Validation loss of the weights it grew from others.
  std::optional<double> loss_nats;        ///< Its last validation loss.
};

/// By phase; empty for a job without phases, and in lists. `now`: seconds since 1970 UTC, to which
/// an attempt that runs counts.
std::vector<PhaseAccount> PhaseLedger(const v1::Job& job, double now);

/// The ledger for people.
Table PhaseTable(const std::vector<PhaseAccount>& ledger);

}  // namespace weft::cli
