#include "cli/time_ledger.h"

#include <utility>

#include "cli/follow.h"
#include "common/duration_text.h"

namespace weft::cli {

std::string TimeText(const v1::Ledger& ledger) {
  constexpr double kNothing = 0.1;
  const std::pair<const char*, double> classes[] = {
      {"queued", ledger.queued_seconds()},
      {"starting", ledger.starting_seconds()},
      {"rework", ledger.rework_seconds()},
      {"checkpoints", ledger.checkpoint_seconds()},
      {"recovery", ledger.recovery_seconds()},
      {"waiting for data", ledger.data_wait_seconds()},
      {"waiting for stragglers", ledger.straggler_seconds()},
  };
  double total = ledger.useful_seconds();
  for (const auto& [name, seconds] : classes) total += seconds;
  if (total < kNothing) return HumanDuration(total);
  std::string text =
      HumanDuration(total) + ", " + PercentText(ledger.useful_seconds() / total) + " of it useful";
  const char* separator = "; ";
  for (const auto& [name, seconds] : classes) {
    if (seconds < kNothing) continue;
    text += std::exchange(separator, ", ") + std::string(name) + " " + HumanDuration(seconds);
  }
  return text;
}

}  // namespace weft::cli
