#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "coordinator/store/sqlite_db.h"
#include "coordinator/store/store.h"

namespace weft::coordinator {

struct SqliteOptions {
  std::string path;                               ///< ":memory:" keeps everything in this process.
  int64_t log_bytes_per_job = int64_t{64} << 20;  ///< The oldest lines beyond it are deleted.
  int64_t max_batch = 64;                         ///< Changes per durable commit.
  /// Called on the writer thread after each durable commit, with its time and its changes.
  std::function<void(double seconds, int64_t changes)> on_commit = nullptr;
  /// Called on the writer thread, and by Open, when Writable changes.
  std::function<void(const Status&)> on_writable = nullptr;
  /// How often a full disk is tried again.
  std::chrono::milliseconds probe_every{2000};
};

/// Store on one SQLite file. One writer thread takes what has queued up while the previous commit
/// was syncing and commits it together (group commit), so a lone change waits for nothing and a
/// crowd placements one sync. A damaged change fails alone (savepoint); a failed sync fails its
/// batch.
class SqliteStore : public Store {
 public:
  /// Opens or creates the database and migrates it. One that exists and needs no migration is also
  /// opened on a full disk; kExhausted otherwise.
  static Result<std::unique_ptr<SqliteStore>> Open(SqliteOptions options);
  /// The question that ListJobs asks.
  static std::string ListJobsSql(const JobQuery& query);
  /// Finishes the queued changes first.
  ~SqliteStore() override;

  /// OK, or why changes cannot be made durable: kExhausted while the disk is full. Found out by the
  /// last change, and then by small writes now and then.
  Status Writable() const;

  void Commit(Transaction transaction, std::function<void(Result<CommitResult>)> done) override;
  Result<JobRecord> GetJob(const std::string& id) override;
  Result<std::vector<std::string>> FindJobIds(const std::string& prefix, int64_t limit) override;
  Result<std::vector<JobSummary>> ListJobs(const JobQuery& query) override;
  Result<std::vector<UnfinishedJob>> ListUnfinished() override;
  Result<std::vector<std::string>> ListEndedBefore(double unix_seconds, int64_t limit) override;
  Result<std::vector<AttemptRecord>> ListAttempts(const std::string& job_id) override;
  Result<std::vector<EventRecord>> ListEvents(const std::string& job_id) override;
  Result<std::vector<IntentRecord>> ListIntents() override;
  Result<std::vector<FolderDeletionRecord>> ListFolderDeletions() override;
  Result<std::vector<CheckpointRecord>> ListCheckpoints(const std::string& job_id) override;
  Result<std::vector<RunRecord>> ListRuns(int64_t limit) override;
  Result<std::vector<CalibrationRecord>> ListCalibrations() override;
  Result<std::vector<LinkRecord>> ListLinks() override;
  Result<std::vector<WorkerSchedulingRecord>> ListWorkerScheduling() override;
  Result<std::vector<SuspicionRecord>> ListSuspicions() override;
  Result<ReliabilityRecord> GetReliability() override;
  Result<int64_t> CountUnfinishedJobs(const std::string& owner) override;
  Result<std::string> OwnerOf(const std::string& job_id) override;
  Result<std::string> QueueOf(const std::string& job_id) override;
  Result<std::string> JobOfRequest(const std::string& owner,
                                   const std::string& client_request_id) override;
  Result<std::vector<AuditRecord>> ListAudit(const AuditQuery& query) override;
  Result<bool> AuditChainHolds() override;
  Result<std::vector<LogRecord>> ReadLogs(const LogQuery& query) override;
  Result<int64_t> TailCursor(const LogQuery& query, int64_t lines) override;

 private:
  struct Operation {
    Transaction transaction;
    std::function<void(Result<CommitResult>)> done;
  };

  explicit SqliteStore(SqliteOptions options) : options_(std::move(options)) {}
  /// A column of a job.
  Result<std::string> ReadText(const char* column, const std::string& job_id);
  SqliteDb& reader() { return reader_ ? *reader_ : *writer_; }
  void WriterLoop();
  void RunBatch(std::deque<Operation>& batch);
  Status OpenConnections();
  void SetWritable(const Status& status);
  void Probe();

  SqliteOptions options_;
  std::unique_ptr<SqliteDb> writer_;
  std::unique_ptr<SqliteDb> reader_;  ///< Null in memory, where both are one connection.
  std::mutex read_mutex_;             ///< Guards the connection that reader() names.

  mutable std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable wake_;
  Status writable_;
  std::deque<Operation> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace weft::coordinator
