#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "common/spec/group_norm.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "coordinator/store/attempt_times.h"

namespace weft::coordinator {

/// State of a job. Names and meaning are those of proto/weft/v1/job_status.proto.
enum class JobState {
  kQueued,
  kStarting,
  kRunning,
  kRecovering,
  kCancelling,
  kSucceeded,
  kFailed,
  kCancelled,
  kPausing,
  kPaused,
};
inline constexpr int kJobStates = 10;

/// Why a job is in its state, or why an attempt ended; as in job_status.proto.
enum class Reason {
  kNone,
  kWaitingForWorkers,
  kWaitingForCapacity,
  kUserError,
  kRankDied,
  kWorkerLost,
  kOutOfMemory,
  kNumerics,
  kRetriesExhausted,
  kCancelledByUser,
  kServiceFault,
  kCompleted,
  kDeviceFailed,
  kReplanned,
  kDrained,
  kHung,
  kPlanning,
  kWaitingForQuota,
  kWaitingForJobs,
  kPreempted,
  kPausedByUser,
  kTimeLimit,
  kJobBeforeFailed,
  kMachineUnhealthy,
  kSilentCorruption,
};
inline constexpr int kReasons = 25;

/// The state of the ranks of one attempt on one worker.
enum class PlacementState {
  kDispatched,  ///< The start intent is stored; the worker has not answered yet.
  kStarted,     ///< Rank processes run.
  kTraining,    ///< First optimizer step done.
  kFinished,    ///< All ended with success.
  kFailed,      ///< One failed, all are gone.
  kStopped,     ///< Ended as asked, all are gone.
  kLost,        ///< The worker does not have them any more, or is itself lost past its lease.
};
inline constexpr int kPlacementStates = 7;

/// "RUNNING"; the names of the wire and of the store.
std::string_view Name(JobState state);
std::string_view Name(Reason reason);
std::string_view Name(PlacementState state);

/// The inverse of Name; nullopt for an unknown text.
std::optional<JobState> JobStateFromName(std::string_view name);
std::optional<Reason> ReasonFromName(std::string_view name);
std::optional<PlacementState> PlacementStateFromName(std::string_view name);

/// Terminal states are final; only a retry asked for by a user leaves kFailed and kCancelled.
constexpr bool IsTerminal(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed ||
         state == JobState::kCancelled;
}

/// No rank of the placement is alive any more.
constexpr bool IsGone(PlacementState state) {
  return state >= PlacementState::kFinished;
}

/// How far a running job is; mirrors weft.v1.Progress field by field.
struct Progress {
  int64_t step = 0;
  int64_t steps_total = 0;
  double loss = 0;
  double gradient_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  double eta_seconds = 0;
  std::optional<double> validation_loss;
  int64_t validation_step = 0;
  std::optional<int64_t> checkpoint_step;
  std::vector<double> recent_losses;
  double utilization_ratio = 0;
  double perplexity = 0;
  std::optional<double> validation_perplexity;
  std::vector<GroupNorm> norms;
  int64_t skipped_steps = 0;
  int64_t loss_spikes = 0;
  int64_t rollbacks = 0;
  std::map<std::string, double> technique_metrics;
  std::optional<double> accuracy;
  std::optional<double> validation_accuracy;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("step", "Optimizer steps done."), self.step);
    visit(Field("steps_total", "Optimizer steps in all."), self.steps_total);
    visit(Field("loss", "Training loss of the last step."), self.loss);
    visit(Field("gradient_norm", "Before clipping."), self.gradient_norm);
    visit(Field("learning_rate", "Of the last step."), self.learning_rate);
    visit(Field("tokens", "Training tokens so far."), self.tokens);
    visit(Field("tokens_per_second", "All ranks."), self.tokens_per_second);
    visit(Field("step_seconds", "Time of the last step.").Unit("seconds"), self.step_seconds);
    visit(Field("eta_seconds", "Remaining time.").Unit("seconds"), self.eta_seconds);
    visit(Field("validation_loss", "Newest validation loss."), self.validation_loss);
    visit(Field("validation_step", "Step of validation_loss."), self.validation_step);
    visit(Field("checkpoint_step", "Newest verified checkpoint."), self.checkpoint_step);
    visit(Field("recent_losses", "Newest training losses.").Range(0, 120), self.recent_losses);
    visit(Field("utilization_ratio", "Of the measured matrix rate."), self.utilization_ratio);
    visit(Field("perplexity", "exp(loss)."), self.perplexity);
    visit(Field("validation_perplexity", "exp(validation_loss)."), self.validation_perplexity);
    visit(Field("norms", "Newest norms by group.").Range(0, 16), self.norms);
    visit(Field("skipped_steps", "Updates dropped."), self.skipped_steps);
    visit(Field("loss_spikes", "Of them because the loss jumped."), self.loss_spikes);
    visit(Field("rollbacks", "Times it went back and left out data."), self.rollbacks);
    visit(Field("technique_metrics", "What techniques measured last, by name."),
          self.technique_metrics);
    visit(Field("accuracy", "Of the last step's examples."), self.accuracy);
    visit(Field("validation_accuracy", "Of the newest validation."), self.validation_accuracy);
  }
};

/// A job as it is stored.
struct JobRecord {
  std::string id;
  JobSpec spec;
  JobState state = JobState::kQueued;
  Reason reason = Reason::kNone;
  std::string message;
  double submitted_at = 0;           ///< Seconds since 1970 UTC, as the two below.
  std::optional<double> started_at;  ///< First dispatch.
  std::optional<double> ended_at;    ///< Terminal state reached.
  double queued_at = 0;              ///< Last time it entered kQueued.
  std::string run_dir;
  std::string summary_json;
  Progress progress;              ///< As known at the last change of the record.
  int64_t last_epoch = 0;         ///< Epoch of the newest attempt; 0 before the first.
  int64_t budget_from = 0;        ///< This many of them do not count against max_attempts.
  int64_t retried_from = 0;       ///< Newest epoch when a user last asked for a retry; 0: never.
  std::string queue = "default";  ///< Where it is now; spec.scheduling is where it was put.
  int64_t priority = 0;           ///< The same.
  std::string owner;              ///< Who submitted it; empty where people have no names.
  int64_t version = 0;            ///< Grows by one with every write; 0: not stored yet.
  int64_t ordinal = 0;            ///< Place in the order of submission; given by the store.
};

/// What a list shows of a job: small, and read without its spec, plans and log.
struct JobSummary {
  std::string id;
  JobState state = JobState::kQueued;
  Reason reason = Reason::kNone;
  std::string message;  ///< Its first 200 characters.
  double submitted_at = 0;
  std::optional<double> started_at;
  std::optional<double> ended_at;
  std::string run_dir;
  Progress progress;  ///< Numbers alone: norms and recent losses are not read.
  int64_t last_epoch = 0;
  std::string queue;
  int64_t priority = 0;
  std::string group;
  std::string owner;
  int64_t version = 0;
  int64_t ordinal = 0;
};

/// A job that has not ended, as short as can be.
struct UnfinishedJob {
  std::string id;
  JobState state = JobState::kQueued;
};

/// Whether the ranks of a placement are among those of an attempt whose ranks come and go.
enum class PlacementPart {
  kMember,   ///< Always, where ranks stay.
  kJoining,  ///< They start, and take part as soon as they are ready.
  kLeft,     ///< The attempt goes on without them; some may live until the next outer step.
};
inline constexpr int kPlacementParts = 3;

std::string_view Name(PlacementPart part);
std::optional<PlacementPart> PlacementPartFromName(std::string_view name);

/// The ranks of an attempt on one worker.
struct PlacementRecord {
  std::string worker_id;
  std::vector<int64_t> ranks;
  PlacementState state = PlacementState::kDispatched;
  PlacementPart part = PlacementPart::kMember;
};

/// One try at a job. Its epoch fences everything it writes.
struct AttemptRecord {
  std::string job_id;
  int64_t epoch = 0;
  double started_at = 0;
  std::optional<double> ended_at;
  Reason reason = Reason::kNone;
  std::string message;
  Plan plan;
  std::optional<int64_t> first_step;
  int64_t last_step = 0;
  std::vector<PlacementRecord> placements;
  AttemptTimes times;
  /// Number of the newest membership, where ranks come and go (RanksComeAndGo); 0: they stay. The
  /// plan is then one of the ranks that are members.
  int64_t membership = 0;
};

/// One line of a job's history.
struct EventRecord {
  std::string job_id;
  int64_t epoch = 0;
  double time = 0;
  std::string kind;  ///< As JobEvent.kind in job_status.proto.
  std::string text;
};

enum class IntentKind { kStart, kStop };

/// An order to a worker, kept until the worker shows that it knows it. Delivered at least once.
struct IntentRecord {
  std::string worker_id;
  std::string job_id;
  int64_t epoch = 0;
  IntentKind kind = IntentKind::kStart;
  bool graceful = false;  ///< kStop only: let the ranks finish their step and save.
};

/// A run folder that is to be deleted though its job is stored no more; kept until that is done.
struct FolderDeletionRecord {
  std::string job_id;
  std::string run_dir;

  bool operator==(const FolderDeletionRecord&) const = default;
};

/// Whether jobs may be put on a worker; as in coordinator.proto.
enum class WorkerScheduling { kSchedulable, kCordoned, kDraining, kQuarantined };
inline constexpr int kWorkerSchedulings = 4;

std::string_view Name(WorkerScheduling scheduling);
std::optional<WorkerScheduling> WorkerSchedulingFromName(std::string_view name);

/// What an operator, or a check, has said of a worker. Outlives the worker's process.
struct WorkerSchedulingRecord {
  std::string worker_id;
  WorkerScheduling scheduling = WorkerScheduling::kSchedulable;
  std::string why;  ///< For people.

  bool operator==(const WorkerSchedulingRecord&) const = default;
};

struct CheckpointRecord {
  std::string job_id;
  int64_t step = 0;
  int64_t epoch = 0;
  std::string path;
  int64_t bytes = 0;
  bool verified = false;
  double created_at = 0;
};

/// What speaks against the machine of a worker: failures lately that may have been its own.
struct SuspicionRecord {
  std::string worker_id;
  double suspicion = 0;  ///< When it was written; it decays.
  double at = 0;         ///< That time, in seconds since 1970 UTC.

  bool operator==(const SuspicionRecord&) const = default;
};

/// How long machines have worked for jobs, and how often that ended in a failure of theirs.
struct ReliabilityRecord {
  double device_seconds = 0;  ///< Of GPUs, or of machines without.
  int64_t failures = 0;

  bool operator==(const ReliabilityRecord&) const = default;
};

/// What came out of an attempt, and what its plan said.
struct RunRecord {
  std::string job_id;
  int64_t epoch = 0;
  double ended_at = 0;
  std::vector<WorkerProfile> machines;  ///< That it ran on, as they were measured.
  double step_seconds = 0;              ///< Median of its steps.
  int64_t timed_steps = 0;              ///< That is their median.
  int64_t memory_bytes = 0;  ///< Peak of rank 0 without the process itself; 0: not reported.
  JobSpec spec;              ///< Of the phase (JobOfPhase), as it is read; not written.
  Plan plan;                 ///< Of the attempt, as it is read; not written.
};

/// What runs have taught of a kind of machine.
struct CalibrationRecord {
  std::string machine;  ///< planner::MachineKind.
  TimeCalibration calibration;
};

/// The network between two machines as it was measured, with what they were reached at then.
struct LinkRecord {
  std::string machine_a;  ///< The lesser name of the two.
  std::string machine_b;
  std::string host_a;
  std::string host_b;
  double bytes_per_second = 0;  ///< One TCP stream, the slower direction.
  double latency_seconds = 0;   ///< One way.
  double measured_at = 0;

  bool operator==(const LinkRecord&) const = default;
};

/// A stored log line; sequence is its position in the job's log, from 1 without gaps.
struct LogRecord {
  int64_t sequence = 0;
  int64_t epoch = 0;
  int64_t rank = 0;
  bool is_stderr = false;
  double time = 0;
  std::string text;
};

/// Lines of ranks of one attempt that are on a worker at one time. first_position counts from 1
/// over all lines of that source.
struct LogAppend {
  std::string job_id;
  int64_t epoch = 0;
  std::string worker_id;
  int64_t first_position = 1;
  std::vector<LogRecord> lines;
  /// They follow lines that were given to the store before: not stored unless those are.
  bool follows = false;
  int64_t first_rank = 0;  ///< Lowest of the ranks.
};

}  // namespace weft::coordinator
