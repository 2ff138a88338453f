#include "tests/chaos/history.h"

#include <algorithm>
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
    case kCancelling:
      return {kCancelled, kSucceeded};
    default:
      return {};
  }
}

/// The state after the call took effect in `state`; nothing where it cannot have had this outcome
/// there.
std::optional<ModelState> Apply(const Operation& operation, ModelState state) {
  const bool refused = operation.outcome == Outcome::kRefused;
  switch (operation.call) {
    case Call::kSubmit:
      if (refused) return std::nullopt;
      return state == kAbsent ? kQueued : state;
    case Call::kCancel:
      if (refused || state == kAbsent) return std::nullopt;
      if (state == kQueued) return kCancelled;
      return IsOver(state) ? state : kCancelling;
    case Call::kRetry: {
      const bool may = state == kFailed || state == kCancelled;
      if (operation.outcome == Outcome::kUnknown) return may ? kQueued : state;
      if (may == refused) return std::nullopt;
      return refused ? state : kQueued;
    }
    case Call::kLook:
      return state == operation.seen ? std::optional(state) : std::nullopt;
  }
  return std::nullopt;
}

/// Depth-first over which call takes effect next. What was tried once is not tried again.
class Search {
 public:
  Search(const std::vector<Operation>& operations, Movers movers)
      : operations_(operations), movers_(movers), done_(operations.size(), false) {}

  bool Explains() { return From(kAbsent, 0); }
  /// The calls that came furthest in some order.
  size_t most_done() const { return most_done_; }

 private:
  bool From(ModelState state, size_t done) {
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
    if (!tried_.emplace(done_, state).second) return false;
    for (const ModelState next : OwnMoves(state, movers_)) {
      if (From(next, done)) return true;
    }
    for (size_t i = first_; i < operations_.size() && operations_[i].start <= first_end; ++i) {
      if (done_[i]) continue;
      const std::optional<ModelState> next = Apply(operations_[i], state);
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
  std::set<std::pair<std::vector<bool>, ModelState>> tried_;
};

std::string Text(const Operation& operation) {
  constexpr std::string_view kCalls[] = {"submit", "cancel", "retry", "look"};
  constexpr std::string_view kOutcomes[] = {"done", "refused", "unknown"};
  std::string text(kCalls[static_cast<size_t>(operation.call)]);
  text += operation.call == Call::kLook
              ? " " + std::string(Name(operation.seen))
              : " " + std::string(kOutcomes[static_cast<size_t>(operation.outcome)]);
  return text + " [" + std::to_string(operation.start) + ", " + std::to_string(operation.end) + "]";
}

}  // namespace

std::string_view Name(ModelState state) {
  constexpr std::string_view kNames[kModelStates] = {"ABSENT",    "QUEUED",     "STARTING",
                                                     "RUNNING",   "RECOVERING", "CANCELLING",
                                                     "SUCCEEDED", "FAILED",     "CANCELLED"};
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
