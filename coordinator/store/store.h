#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/heap_optional.h"
#include "common/status.h"
#include "coordinator/store/audit_record.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// What is kept of the checkpoints that are older than one just verified: those of the same name in
/// the engine's catalog, which deletes the folders by the same rule.
struct CheckpointRetention {
  int64_t keep_last = 1;               ///< Newest verified ones, the one just verified among them.
  std::optional<int64_t> resume_step;  ///< And this one.
  int64_t after_step = 0;              ///< And those up to here, of phases that are complete.
};

/// A job that is forgotten, if it is still as its version says.
struct JobDeletion {
  std::string id;
  int64_t version = 0;
};

/// One atomic change. All parts are stored, or none.
struct Transaction {
  /// Written when the stored version equals job->version (0: it must not exist yet); the stored
  /// version is one more. Otherwise the transaction fails with kConflict. So does a new job unless
  /// all jobs of its scheduling.after exist, or when a job of its id was deleted.
  std::optional<JobRecord> job;
  /// The client's name for this submission, with a new job. When it is known already of the job's
  /// owner nothing is written, and the result names the job submitted then.
  std::string client_request_id;
  /// Inserted, or replaced when the (job, epoch) exists. The epoch of a new one must be greater
  /// than every epoch of the job, or the transaction fails with kConflict.
  HeapOptional<AttemptRecord> attempt;
  std::vector<EventRecord> events;
  std::vector<IntentRecord> add_intents;     ///< Replaces one of the same worker, attempt, kind.
  std::vector<IntentRecord> remove_intents;  ///< By worker, attempt and kind; absent ones are fine.
  std::optional<CheckpointRecord> checkpoint;  ///< Replaces the one of the same job and step.
  /// Then the records of older checkpoints of that job that it does not keep are deleted.
  std::optional<CheckpointRetention> retention;
  std::optional<RunRecord> run;  ///< Replaces the one of the same attempt.
  /// Replace those that there were; they are of all kinds of machines.
  std::optional<std::vector<CalibrationRecord>> calibrations;
  std::optional<LinkRecord> link;  ///< Replaces the one of the same machines.
  /// Links to and from these machines are deleted.
  std::vector<std::string> forget_links_of = {};
  std::optional<WorkerSchedulingRecord> worker_scheduling;  ///< kSchedulable: forgets the worker's.
  std::optional<SuspicionRecord> suspicion = {};  ///< Replaces the one of the same worker.
  /// Added to what is stored of all machines.
  std::optional<ReliabilityRecord> reliability = {};
  /// Lines whose position the source has stored already are dropped. A gap stays one: the source
  /// has lost those lines. kConflict where the lines are said to follow others that are not stored.
  std::optional<LogAppend> logs;
  /// The job and all that is stored of it: attempts, events, checkpoints, runs, log, request id.
  /// kConflict when it is of another version, or a job that has not ended comes after it. Events of
  /// this transaction are stored after that.
  std::optional<JobDeletion> delete_job;
  std::optional<FolderDeletionRecord> add_folder_deletion;  ///< Replaces the one of the same job.
  std::string end_folder_deletion;  ///< The one of this job is removed; an absent one is fine.
  /// Only this many events of each job, the newest, are kept.
  std::optional<int64_t> keep_events;
  /// Events of jobs that were deleted before this time are deleted. Unit: seconds since 1970 UTC.
  std::optional<double> forget_deleted_before;
  /// The call that makes this change. Its record is appended to the audit log, unless nothing is
  /// written, and CallRecord::stored is true once that is durable.
  std::shared_ptr<CallRecord> audit = nullptr;

  bool empty() const {
    return !job && !attempt && events.empty() && add_intents.empty() && remove_intents.empty() &&
           !checkpoint && !run && !calibrations && !link && forget_links_of.empty() &&
           !worker_scheduling && !suspicion && !reliability && !logs && !delete_job &&
           !add_folder_deletion && end_folder_deletion.empty() && !keep_events &&
           !forget_deleted_before && audit == nullptr;
  }
};

struct CommitResult {
  int64_t job_version = 0;        ///< Of Transaction::job.
  int64_t job_ordinal = 0;        ///< Of a new job.
  std::string existing_job_id;    ///< Set when client_request_id was known.
  int64_t log_position = 0;       ///< The source's lines are stored up to here.
  int64_t last_log_sequence = 0;  ///< Newest line of the job.
  bool audited = false;           ///< Transaction::audit was written.
};

/// A page of jobs, newest first.
struct JobQuery {
  std::vector<JobState> states = {};  ///< Empty: all.
  int64_t before_ordinal = 0;         ///< Only older ones; 0: from the newest.
  int64_t limit = 100;
  std::string queue = {};  ///< Only jobs that are there; empty: all.
  std::string group = {};  ///< Only jobs of that group; empty: all.
  std::string owner = {};  ///< Only jobs of that person; empty: all.
};

struct LogQuery {
  std::string job_id;
  int64_t after_sequence = 0;
  std::optional<int64_t> rank;
  std::optional<int64_t> epoch;
  int64_t limit = 1000;
};

/// The durable state of the coordinator, behind one contract: SQLite today. Thread-safe. Changes
/// are acknowledged only when they survive power loss. Reads see every acknowledged change.
///
/// Errors: kConflict (version, epoch, or what Transaction says of other jobs), kExhausted (disk
/// full), kCorrupt (the stored bytes are damaged), kInternal (anything else of the back end);
/// nothing was changed then.
class Store {
 public:
  virtual ~Store() = default;

  /// Queues a change. `done` runs on the store's writer thread after the change is durable, or has
  /// failed; calls run in the order of Commit. It must not block and must not call the store.
  virtual void Commit(Transaction transaction, std::function<void(Result<CommitResult>)> done) = 0;

  virtual Result<JobRecord> GetJob(const std::string& id) = 0;
  /// Ids that begin with `prefix`, in order, at most `limit`.
  virtual Result<std::vector<std::string>> FindJobIds(const std::string& prefix, int64_t limit) = 0;
  /// One query, whatever the number of jobs; reads neither specs nor plans.
  virtual Result<std::vector<JobSummary>> ListJobs(const JobQuery& query) = 0;
  /// All jobs that have not ended, the oldest first.
  virtual Result<std::vector<UnfinishedJob>> ListUnfinished() = 0;
  /// Jobs that ended before `unix_seconds`, the one that ended first first, at most `limit`.
  virtual Result<std::vector<std::string>> ListEndedBefore(double unix_seconds, int64_t limit) = 0;
  /// Oldest first.
  virtual Result<std::vector<AttemptRecord>> ListAttempts(const std::string& job_id) = 0;
  virtual Result<std::vector<EventRecord>> ListEvents(const std::string& job_id) = 0;
  virtual Result<std::vector<IntentRecord>> ListIntents() = 0;
  /// Run folders of deleted jobs that are still to be deleted.
  virtual Result<std::vector<FolderDeletionRecord>> ListFolderDeletions() = 0;
  /// Newest step first.
  virtual Result<std::vector<CheckpointRecord>> ListCheckpoints(const std::string& job_id) = 0;
  /// Lists the runs that ended last, newest first.
  virtual Result<std::vector<RunRecord>> ListRuns(int64_t limit) = 0;
  virtual Result<std::vector<CalibrationRecord>> ListCalibrations() = 0;
  /// Lists links in order of the machines' names.
  virtual Result<std::vector<LinkRecord>> ListLinks() = 0;
  /// Lists in order of the workers' names; those that nothing was said of are not in it.
  virtual Result<std::vector<WorkerSchedulingRecord>> ListWorkerScheduling() = 0;
  /// Lists workers that have some, in the order of their names.
  virtual Result<std::vector<SuspicionRecord>> ListSuspicions() = 0;
  virtual Result<ReliabilityRecord> GetReliability() = 0;
  /// Jobs of a person that have not ended.
  virtual Result<int64_t> CountUnfinishedJobs(const std::string& owner) = 0;
  /// The owner of the job; kNotFound without such a job.
  virtual Result<std::string> OwnerOf(const std::string& job_id) = 0;
  /// The queue that the job is in, or was in when it ended; kNotFound without such a job.
  virtual Result<std::string> QueueOf(const std::string& job_id) = 0;
  /// The job that this person submitted under that request id; kNotFound: there is none.
  virtual Result<std::string> JobOfRequest(const std::string& owner,
                                           const std::string& client_request_id) = 0;
  /// Oldest first.
  virtual Result<std::vector<AuditRecord>> ListAudit(const AuditQuery& query) = 0;
  /// Whether the audit log is as it was written: no record changed, none missing.
  virtual Result<bool> AuditChainHolds() = 0;
  /// Reads logs in order of sequence.
  virtual Result<std::vector<LogRecord>> ReadLogs(const LogQuery& query) = 0;
  /// The cursor (for LogQuery::after_sequence) that leaves the newest `lines` lines of the query.
  virtual Result<int64_t> TailCursor(const LogQuery& query, int64_t lines) = 0;
};

/// Commit and wait.
Result<CommitResult> CommitAndWait(Store& store, Transaction transaction);

}  // namespace weft::coordinator
