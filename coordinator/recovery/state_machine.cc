#include "coordinator/recovery/state_machine.h"

#include <array>

#include "common/check.h"

namespace weft::coordinator {
namespace {

using enum JobState;

constexpr JobTransition Move(JobState from, JobEvent event, JobState to,
                             JobGuard guard = JobGuard::kAlways) {
  return {from, event, guard, JobOutcome::kMove, to};
}
constexpr JobTransition Record(JobState from, JobEvent event) {
  return {from, event, JobGuard::kAlways, JobOutcome::kRecord, from};
}
constexpr JobTransition Refuse(JobState from, JobEvent event) {
  return {from, event, JobGuard::kAlways, JobOutcome::kRefuse, from};
}

// A job is terminal, queued or paused only when no rank of its last attempt is left: failures pass
// through RECOVERING, cancels through CANCELLING and pauses through PAUSING until kGone.
constexpr JobTransition kJobTable[] = {
    Move(kQueued, JobEvent::kDispatch, kStarting),
    Record(kQueued, JobEvent::kTraining),
    Record(kQueued, JobEvent::kFinished),
    Record(kQueued, JobEvent::kPhaseFinished),
    Record(kQueued, JobEvent::kInterrupted),
    Record(kQueued, JobEvent::kGone),
    Move(kQueued, JobEvent::kCancel, kCancelled),
    Refuse(kQueued, JobEvent::kRetry),
    Refuse(kQueued, JobEvent::kReplan),
    Record(kQueued, JobEvent::kDrain),
    Record(kQueued, JobEvent::kPreempt),
    Move(kQueued, JobEvent::kPause, kPaused),
    Refuse(kQueued, JobEvent::kResume),
    Move(kQueued, JobEvent::kGiveUp, kFailed),

    Refuse(kStarting, JobEvent::kDispatch),
    Move(kStarting, JobEvent::kTraining, kRunning),
    Move(kStarting, JobEvent::kFinished, kSucceeded),
    Move(kStarting, JobEvent::kPhaseFinished, kQueued),
    Move(kStarting, JobEvent::kInterrupted, kRecovering),
    Record(kStarting, JobEvent::kGone),
    Move(kStarting, JobEvent::kCancel, kCancelling),
    Refuse(kStarting, JobEvent::kRetry),
    Refuse(kStarting, JobEvent::kReplan),
    Move(kStarting, JobEvent::kDrain, kRecovering),
    Move(kStarting, JobEvent::kPreempt, kRecovering),
    Move(kStarting, JobEvent::kPause, kPausing),
    Refuse(kStarting, JobEvent::kResume),
    Move(kStarting, JobEvent::kGiveUp, kRecovering),

    Refuse(kRunning, JobEvent::kDispatch),
    Record(kRunning, JobEvent::kTraining),
    Move(kRunning, JobEvent::kFinished, kSucceeded),
    Move(kRunning, JobEvent::kPhaseFinished, kQueued),
    Move(kRunning, JobEvent::kInterrupted, kRecovering),
    Record(kRunning, JobEvent::kGone),
    Move(kRunning, JobEvent::kCancel, kCancelling),
    Refuse(kRunning, JobEvent::kRetry),
    Move(kRunning, JobEvent::kReplan, kRecovering),
    Move(kRunning, JobEvent::kDrain, kRecovering),
    Move(kRunning, JobEvent::kPreempt, kRecovering),
    Move(kRunning, JobEvent::kPause, kPausing),
    Refuse(kRunning, JobEvent::kResume),
    Move(kRunning, JobEvent::kGiveUp, kRecovering),

    Refuse(kRecovering, JobEvent::kDispatch),
    Record(kRecovering, JobEvent::kTraining),
    Move(kRecovering, JobEvent::kFinished, kSucceeded),
    Move(kRecovering, JobEvent::kPhaseFinished, kQueued),
    Record(kRecovering, JobEvent::kInterrupted),
    Move(kRecovering, JobEvent::kGone, kQueued, JobGuard::kMayRetry),
    Move(kRecovering, JobEvent::kGone, kFailed, JobGuard::kMayNotRetry),
    Move(kRecovering, JobEvent::kCancel, kCancelling),
    Refuse(kRecovering, JobEvent::kRetry),
    Refuse(kRecovering, JobEvent::kReplan),
    Record(kRecovering, JobEvent::kDrain),
    Record(kRecovering, JobEvent::kPreempt),
    Move(kRecovering, JobEvent::kPause, kPausing),
    Refuse(kRecovering, JobEvent::kResume),
    Record(kRecovering, JobEvent::kGiveUp),

    Refuse(kCancelling, JobEvent::kDispatch),
    Record(kCancelling, JobEvent::kTraining),
    Move(kCancelling, JobEvent::kFinished, kSucceeded),
    Move(kCancelling, JobEvent::kPhaseFinished, kCancelled),
    Record(kCancelling, JobEvent::kInterrupted),
    Move(kCancelling, JobEvent::kGone, kCancelled),
    Record(kCancelling, JobEvent::kCancel),
    Refuse(kCancelling, JobEvent::kRetry),
    Refuse(kCancelling, JobEvent::kReplan),
    Record(kCancelling, JobEvent::kDrain),
    Record(kCancelling, JobEvent::kPreempt),
    Refuse(kCancelling, JobEvent::kPause),
    Refuse(kCancelling, JobEvent::kResume),
    Record(kCancelling, JobEvent::kGiveUp),

    Refuse(kSucceeded, JobEvent::kDispatch),
    Record(kSucceeded, JobEvent::kTraining),
    Record(kSucceeded, JobEvent::kFinished),
    Record(kSucceeded, JobEvent::kPhaseFinished),
    Record(kSucceeded, JobEvent::kInterrupted),
    Record(kSucceeded, JobEvent::kGone),
    Record(kSucceeded, JobEvent::kCancel),
    Refuse(kSucceeded, JobEvent::kRetry),
    Refuse(kSucceeded, JobEvent::kReplan),
    Record(kSucceeded, JobEvent::kDrain),
    Record(kSucceeded, JobEvent::kPreempt),
    Refuse(kSucceeded, JobEvent::kPause),
    Refuse(kSucceeded, JobEvent::kResume),
    Record(kSucceeded, JobEvent::kGiveUp),

    Refuse(kFailed, JobEvent::kDispatch),
    Record(kFailed, JobEvent::kTraining),
    Record(kFailed, JobEvent::kFinished),
    Record(kFailed, JobEvent::kPhaseFinished),
    Record(kFailed, JobEvent::kInterrupted),
    Record(kFailed, JobEvent::kGone),
    Record(kFailed, JobEvent::kCancel),
    Move(kFailed, JobEvent::kRetry, kQueued),
    Refuse(kFailed, JobEvent::kReplan),
    Record(kFailed, JobEvent::kDrain),
    Record(kFailed, JobEvent::kPreempt),
    Refuse(kFailed, JobEvent::kPause),
    Refuse(kFailed, JobEvent::kResume),
    Record(kFailed, JobEvent::kGiveUp),

    Refuse(kCancelled, JobEvent::kDispatch),
    Record(kCancelled, JobEvent::kTraining),
    Record(kCancelled, JobEvent::kFinished),
    Record(kCancelled, JobEvent::kPhaseFinished),
    Record(kCancelled, JobEvent::kInterrupted),
    Record(kCancelled, JobEvent::kGone),
    Record(kCancelled, JobEvent::kCancel),
    Move(kCancelled, JobEvent::kRetry, kQueued),
    Refuse(kCancelled, JobEvent::kReplan),
    Record(kCancelled, JobEvent::kDrain),
    Record(kCancelled, JobEvent::kPreempt),
    Refuse(kCancelled, JobEvent::kPause),
    Refuse(kCancelled, JobEvent::kResume),
    Record(kCancelled, JobEvent::kGiveUp),

    Refuse(kPausing, JobEvent::kDispatch),
    Record(kPausing, JobEvent::kTraining),
    Move(kPausing, JobEvent::kFinished, kSucceeded),
    Move(kPausing, JobEvent::kPhaseFinished, kPaused),
    Record(kPausing, JobEvent::kInterrupted),
    Move(kPausing, JobEvent::kGone, kPaused, JobGuard::kMayRetry),
    Move(kPausing, JobEvent::kGone, kFailed, JobGuard::kMayNotRetry),
    Move(kPausing, JobEvent::kCancel, kCancelling),
    Refuse(kPausing, JobEvent::kRetry),
    Refuse(kPausing, JobEvent::kReplan),
    Record(kPausing, JobEvent::kDrain),
    Record(kPausing, JobEvent::kPreempt),
    Record(kPausing, JobEvent::kPause),
    Move(kPausing, JobEvent::kResume, kRecovering),
    Record(kPausing, JobEvent::kGiveUp),

    Refuse(kPaused, JobEvent::kDispatch),
    Record(kPaused, JobEvent::kTraining),
    Record(kPaused, JobEvent::kFinished),
    Record(kPaused, JobEvent::kPhaseFinished),
    Record(kPaused, JobEvent::kInterrupted),
    Record(kPaused, JobEvent::kGone),
    Move(kPaused, JobEvent::kCancel, kCancelled),
    Refuse(kPaused, JobEvent::kRetry),
    Refuse(kPaused, JobEvent::kReplan),
    Record(kPaused, JobEvent::kDrain),
    Record(kPaused, JobEvent::kPreempt),
    Record(kPaused, JobEvent::kPause),
    Move(kPaused, JobEvent::kResume, kQueued),
    Record(kPaused, JobEvent::kGiveUp),
};

constexpr auto MakeShareTable() {
  std::array<PlacementTransition, size_t{kPlacementStates} * kPlacementEvents> table{};
  constexpr PlacementState kTargets[kPlacementEvents] = {
      PlacementState::kStarted, PlacementState::kTraining, PlacementState::kFinished,
      PlacementState::kFailed,  PlacementState::kStopped,  PlacementState::kLost};
  size_t next = 0;
  for (int s = 0; s < kPlacementStates; ++s) {
    for (int e = 0; e < kPlacementEvents; ++e) {
      auto from = static_cast<PlacementState>(s);
      // States are ordered by progress: a report of an earlier one is late, and what is gone stays.
      bool moves = !IsGone(from) && kTargets[e] > from;
      table[next++] = {from, static_cast<PlacementEvent>(e), moves ? kTargets[e] : from};
    }
  }
  return table;
}

constexpr auto kShareTable = MakeShareTable();

}  // namespace

std::span<const JobTransition> JobTransitions() {
  return kJobTable;
}

const JobTransition& FindTransition(JobState from, JobEvent event, bool may_retry) {
  JobGuard unwanted = may_retry ? JobGuard::kMayNotRetry : JobGuard::kMayRetry;
  for (const JobTransition& row : kJobTable) {
    if (row.from == from && row.event == event && row.guard != unwanted) return row;
  }
  CheckFailed(__FILE__, __LINE__, "job table", "a pair of state and event is not defined");
}

std::span<const PlacementTransition> PlacementTransitions() {
  return kShareTable;
}

PlacementState NextPlacementState(PlacementState from, PlacementEvent event) {
  return kShareTable[static_cast<size_t>(from) * kPlacementEvents + static_cast<size_t>(event)].to;
}

std::string_view Name(JobEvent event) {
  constexpr std::string_view kNames[kJobEvents] = {
      "dispatch", "training", "finished", "phase finished", "interrupted", "gone",   "cancel",
      "retry",    "replan",   "drain",    "preempt",        "pause",       "resume", "give up"};
  return kNames[static_cast<size_t>(event)];
}

std::string_view Name(PlacementEvent event) {
  constexpr std::string_view kNames[kPlacementEvents] = {"started", "training", "finished",
                                                         "failed",  "stopped",  "lost"};
  return kNames[static_cast<size_t>(event)];
}

}  // namespace weft::coordinator
