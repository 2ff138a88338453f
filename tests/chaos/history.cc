#include "tests/chaos/history.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace weft::testing {
namespace {

using enum ModelState;
using Call = Operation::Call;
using Outcome = Operation::Outcome;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// What the model knows of a job.
struct ModelJob {
  ModelState state = kAbsent;
  int64_t priority = 0;

  auto operator<=>(const ModelJob&) const = default;
};

bool IsOver(ModelState state) {
  return state == kSucceeded || state == kFailed || state == kCancelled;
}

/// Where the service may move a job by itself.
std::vector<ModelState> OwnMoves(ModelState state, Movers movers) {
  if (movers == Movers::kNobody) return {};
  switch (state) {
    case kQueued:
      return {kStarting};
    case kStarting:
      return {kRunning, kRecovering, kSucceeded};
    case kRunning:
      return {kRecovering, kSucceeded};
    case kRecovering:
      return {kQueued, kFailed, kSucceeded};
    case kPausing:
      return {kPaused, kFailed, kSucceeded};
    case kCancelling:
      return {kCancelled, kSucceeded};
    default:
      return {};
  }
}

/// Where a call leaves a job that is in this state; nothing: it is refused.
std::optional<ModelState> MoveBy(Call call, ModelState state) {
  const bool waits = state == kQueued || state == kPaused;
  switch (call) {
    case Call::kCancel:
      return IsOver(state) ? state : waits ? kCancelled : kCancelling;
    case Call::kRetry:
      if (state == kFailed || state == kCancelled) return kQueued;
      break;
    case Call::kPause:
      if (waits) return kPaused;
      if (!IsOver(state) && state != kCancelling) return kPausing;
      break;
    case Call::kResume:
      if (state == kPaused) return kQueued;
      if (state == kPausing) return kRecovering;
      break;
    case Call::kUpdate:
      if (!IsOver(state)) return state;
      break;
    case Call::kDelete:
      if (IsOver(state)) return kAbsent;
      break;
    case Call::kSubmit:
    case Call::kLook:
      return state;
  }
  return std::nullopt;
}

/// The job after the call took effect on it; nothing where it cannot have had this outcome then.
std::optional<ModelJob> Apply(const Operation& operation, ModelJob job) {
  const bool refused = operation.outcome == Outcome::kRefused;
  if (operation.call == Call::kSubmit) {
    if (refused) return std::nullopt;
    return job.state == kAbsent ? ModelJob{kQueued, 0} : job;
  }
  if (operation.call == Call::kLook) {
    const bool same =
        job.state == operation.seen && (job.state == kAbsent || job.priority == operation.priority);
    return same ? std::optional(job) : std::nullopt;
  }
  const bool missing = operation.outcome == Outcome::kMissing;
  if (missing || job.state == kAbsent) {
    return missing && job.state == kAbsent ? std::optional(job) : std::nullopt;
  }
  const std::optional<ModelState> to = MoveBy(operation.call, job.state);
  if (operation.outcome != Outcome::kUnknown && to.has_value() == refused) return std::nullopt;
  if (!to) return job;
  return ModelJob{*to, operation.call == Call::kUpdate ? operation.priority : job.priority};
}

/// Depth-first over which call takes effect next. What was tried once is not tried again.
class Search {
 public:
  Search(const std::vector<Operation>& operations, Movers movers)
      : operations_(operations), movers_(movers), done_(operations.size(), false) {}

  bool Explains() { return From(ModelJob(), 0); }
  /// The calls that came furthest in some order.
  size_t most_done() const { return most_done_; }

 private:
  bool From(const ModelJob& job, size_t done) {
    most_done_ = std::max(most_done_, done);
    // Behind the first call that must have taken effect none can that started after its end.
    int64_t first_end = kNever;
    for (size_t i = first_; i < operations_.size(); ++i) {
      if (done_[i]) continue;
      if (operations_[i].start > first_end) break;
      if (operations_[i].outcome != Outcome::kUnknown) {
        first_end = std::min(first_end, operations_[i].end);
      }
    }
    if (first_end == kNever) return true;  // what is left needs no effect
    if (!tried_.emplace(done_, job).second) return false;
    for (const ModelState next : OwnMoves(job.state, movers_)) {
      if (From({next, job.priority}, done)) return true;
    }
    for (size_t i = first_; i < operations_.size() && operations_[i].start <= first_end; ++i) {
      if (done_[i]) continue;
      const std::optional<ModelJob> next = Apply(operations_[i], job);
      if (!next) continue;
      done_[i] = true;
      const size_t first = first_;
      while (first_ < done_.size() && done_[first_]) ++first_;
      if (From(*next, done + 1)) return true;
      first_ = first;
      done_[i] = false;
    }
    return false;
  }

  const std::vector<Operation>& operations_;
  const Movers movers_;
  std::vector<bool> done_;
  size_t first_ = 0;  ///< All before it are done.
  size_t most_done_ = 0;
  std::set<std::pair<std::vector<bool>, ModelJob>> tried_;
};

std::string Text(const Operation& operation) {
  constexpr std::string_view kCalls[] = {"submit", "cancel", "retry",  "pause",
                                         "resume", "update", "delete", "look"};
  constexpr std::string_view kOutcomes[] = {"done", "refused", "missing", "unknown"};
  std::string text(kCalls[static_cast<size_t>(operation.call)]);
  const bool looks = operation.call == Call::kLook;
  text += " " + std::string(looks ? Name(operation.seen)
                                  : kOutcomes[static_cast<size_t>(operation.outcome)]);
  if (looks || operation.call == Call::kUpdate) {
    text += " priority " + std::to_string(operation.priority);
  }
  return text + " [" + std::to_string(operation.start) + ", " + std::to_string(operation.end) + "]";
}

}  // namespace

std::string_view Name(ModelState state) {
  constexpr std::string_view kNames[kModelStates] = {
      "ABSENT", "QUEUED",     "STARTING",  "RUNNING", "RECOVERING", "PAUSING",
      "PAUSED", "CANCELLING", "SUCCEEDED", "FAILED",  "CANCELLED"};
  return kNames[static_cast<size_t>(state)];
}

Status CheckHistory(std::vector<Operation> operations, Movers movers) {
  std::sort(operations.begin(), operations.end(),
            [](const Operation& a, const Operation& b) { return a.start < b.start; });
  Search search(operations, movers);
  if (search.Explains()) return OkStatus();
  std::string text = "no order of these calls explains their answers beyond the first " +
                     std::to_string(search.most_done()) + ":";
  for (const Operation& operation : operations) text += "\n  " + Text(operation);
  return ConflictError(text);
}

}  // namespace weft::testing
