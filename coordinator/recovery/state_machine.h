#pragma once

#include <span>
#include <string_view>

#include "coordinator/store/records.h"

namespace weft::coordinator {

/// What can happen to a job.
enum class JobEvent {
  kDispatch,       ///< The scheduler starts an attempt.
  kTraining,       ///< The first optimizer step of the attempt is done.
  kFinished,       ///< Every rank of the attempt ended with success, and the job is complete.
  kPhaseFinished,  ///< The same of a phase that others follow.
  kInterrupted,    ///< A rank or worker of the attempt is lost or failed.
  kGone,           ///< No rank of the attempt is left, and not all had finished.
  kCancel,         ///< A user asks it to end.
  kRetry,          ///< A user asks for another run of a failed or cancelled job.
  kReplan,         ///< The ranks are to save and stop, since another plan is better.
  kDrain,          ///< The ranks are to save and stop, since a worker of the attempt drains.
  kPreempt,        ///< The same, since a job that goes first needs the workers.
  kPause,          ///< A user asks it to save, stop and wait.
  kResume,         ///< A user asks a paused job to go on.
  kGiveUp,         ///< It must not go on: its time is over, or a job that it comes after failed.
};
inline constexpr int kJobEvents = 14;

/// Condition under which a row of the table holds.
enum class JobGuard {
  kAlways,
  kMayRetry,     ///< The cause may pass, and attempts are left.
  kMayNotRetry,  ///< The opposite.
};

enum class JobOutcome {
  kMove,    ///< The state becomes `to`.
  kRecord,  ///< Late or repeated: goes into the history, the state stays.
  kRefuse,  ///< Not allowed in this state: an error for whoever asked.
};

struct JobTransition {
  JobState from;
  JobEvent event;
  JobGuard guard;
  JobOutcome outcome;
  JobState to;  ///< Equal to from unless outcome is kMove.
};

/// The whole life of a job, every pair of state and event defined.
std::span<const JobTransition> JobTransitions();

/// The row that holds. `may_retry` decides between guarded rows.
const JobTransition& FindTransition(JobState from, JobEvent event, bool may_retry);

/// What can happen to the ranks of an attempt on one worker.
enum class PlacementEvent {
  kStarted,
  kTraining,
  kFinished,
  kFailed,
  kStopped,
  kLost,  ///< The worker does not have them, or its lease and the margin have passed.
};
inline constexpr int kPlacementEvents = 6;

struct PlacementTransition {
  PlacementState from;
  PlacementEvent event;
  PlacementState to;  ///< Equal to from: repeated or late, changes nothing.
};

/// The whole life of a placement, every pair defined; placements that are gone stay as they are.
std::span<const PlacementTransition> PlacementTransitions();

PlacementState NextPlacementState(PlacementState from, PlacementEvent event);

std::string_view Name(JobEvent event);
std::string_view Name(PlacementEvent event);

}  // namespace weft::coordinator
