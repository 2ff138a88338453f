#include "worker/daemon/verdict.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>

#include "common/check.h"
#include "common/memory_errors.h"

namespace weft::daemon {
namespace {

/// Lower is nearer to the cause.
int Distance(const RankFailure& failure) {
  if (WIFSIGNALED(failure.wait_status)) return 0;
  if (!failure.reported) return 2;
  StatusCode code = failure.reported->code();
  return code == StatusCode::kUnavailable || code == StatusCode::kAborted ? 3 : 1;
}

v1::Reason ReasonOf(const Status& status) {
  if (status.kind() == FailureKind::kDiverged) return v1::NUMERICS;
  if (status.kind() == FailureKind::kSilentCorruption) return v1::SILENT_CORRUPTION;
  switch (status.code()) {
    case StatusCode::kInvalid:
    case StatusCode::kNotFound:
      return v1::USER_ERROR;
    case StatusCode::kExhausted:
      // A full disk may be emptied; only memory is judged by the plan.
      return IsMemoryError(status) ? v1::OUT_OF_MEMORY : v1::RANK_DIED;
    default:
      return v1::RANK_DIED;
  }
}

}  // namespace

Verdict JudgeFailures(const std::vector<RankFailure>& failures, bool out_of_memory) {
  WEFT_CHECK(!failures.empty(), "a verdict needs a failure");
  const RankFailure& cause =
      *std::min_element(failures.begin(), failures.end(),
                        [](const auto& a, const auto& b) { return Distance(a) < Distance(b); });
  Verdict verdict;
  verdict.rank = cause.rank;
  std::string rank = "rank " + std::to_string(cause.rank);
  if (WIFSIGNALED(cause.wait_status)) {
    verdict.signal = WTERMSIG(cause.wait_status);
    if (verdict.signal == SIGKILL && out_of_memory) {
      verdict.reason = v1::OUT_OF_MEMORY;
      verdict.message = rank +
                        " was killed by the kernel because memory ran out; hint: lower "
                        "resources.micro_batch or set resources.recompute: block";
    } else {
      verdict.message = rank + " was killed by signal " + std::to_string(verdict.signal) + " (" +
                        strsignal(verdict.signal) + ")";
    }
    if (cause.reported) verdict.message += ", after: " + cause.reported->ToString();
    return verdict;
  }
  verdict.exit_status = WEXITSTATUS(cause.wait_status);
  if (cause.reported) {
    verdict.reason = ReasonOf(*cause.reported);
    verdict.message = rank + ": " + cause.reported->ToString();
  } else {
    verdict.message = rank + " ended with exit status " + std::to_string(verdict.exit_status) +
                      " and no message; its log may say why";
  }
  return verdict;
}

}  // namespace weft::daemon
