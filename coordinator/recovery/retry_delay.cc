#include "coordinator/recovery/retry_delay.h"

#include <algorithm>
#include <cmath>

#include "common/rng.h"

namespace weft::coordinator {

bool HasFailed(const AttemptRecord& attempt) {
  switch (attempt.reason) {
    case Reason::kNone:
    case Reason::kCompleted:
    case Reason::kCancelledByUser:
    case Reason::kReplanned:
    case Reason::kDrained:
    case Reason::kPreempted:
    case Reason::kPausedByUser:
    case Reason::kTimeLimit:
      return false;
    default:
      return true;
  }
}

int64_t FailuresInARow(int64_t before, const AttemptRecord& attempt,
                       std::optional<int64_t> checkpoint_step, int64_t retried_from) {
  if (attempt.epoch <= retried_from) return 0;
  const bool saved =
      attempt.first_step && checkpoint_step && *checkpoint_step >= *attempt.first_step;
  return (saved ? 0 : before) + (HasFailed(attempt) ? 1 : 0);
}

double RetryDelaySeconds(const RetryRules& rules, int64_t failures, const std::string& job_id,
                         int64_t epoch) {
  // 2^30 first delays are past any cap.
  const auto doublings = static_cast<int>(std::clamp<int64_t>(failures - 1, 0, 30));
  const double whole = std::min(std::ldexp(rules.first_seconds, doublings), rules.most_seconds);
  PhiloxStream random({0, static_cast<uint32_t>(epoch), SiteHash(job_id.c_str())});
  return whole * (0.5 + 0.5 * static_cast<double>(UniformFloat(random.Next())));
}

}  // namespace weft::coordinator
