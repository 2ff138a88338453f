#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/store/store.h"

namespace weft::coordinator {

/// Hands everything to another store: for tests that change or count some of it.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(Store& store) : store_(store) {}

  void Commit(Transaction change, std::function<void(Result<CommitResult>)> done) override {
    store_.Commit(std::move(change), std::move(done));
  }
  Result<JobRecord> GetJob(const std::string& id) override { return Read().GetJob(id); }
  Result<std::vector<std::string>> FindJobIds(const std::string& prefix, int64_t limit) override {
    return Read().FindJobIds(prefix, limit);
  }
  Result<std::vector<JobSummary>> ListJobs(const JobQuery& query) override {
    return Read().ListJobs(query);
  }
  Result<std::vector<UnfinishedJob>> ListUnfinished() override { return Read().ListUnfinished(); }
  Result<std::vector<std::string>> ListEndedBefore(double unix_seconds, int64_t limit) override {
    return Read().ListEndedBefore(unix_seconds, limit);
  }
  Result<std::vector<AttemptRecord>> ListAttempts(const std::string& id) override {
    return Read().ListAttempts(id);
  }
  Result<std::vector<EventRecord>> ListEvents(const std::string& id) override {
    return Read().ListEvents(id);
  }
  Result<std::vector<IntentRecord>> ListIntents() override { return Read().ListIntents(); }
  Result<std::vector<FolderDeletionRecord>> ListFolderDeletions() override {
    return Read().ListFolderDeletions();
  }
  Result<std::vector<CheckpointRecord>> ListCheckpoints(const std::string& id) override {
    return Read().ListCheckpoints(id);
  }
  Result<std::vector<RunRecord>> ListRuns(int64_t limit) override { return Read().ListRuns(limit); }
  Result<std::vector<CalibrationRecord>> ListCalibrations() override {
    return Read().ListCalibrations();
  }
  Result<std::vector<LinkRecord>> ListLinks() override { return Read().ListLinks(); }
  Result<std::vector<WorkerSchedulingRecord>> ListWorkerScheduling() override {
    return Read().ListWorkerScheduling();
  }
  Result<std::vector<SuspicionRecord>> ListSuspicions() override { return Read().ListSuspicions(); }
  Result<ReliabilityRecord> GetReliability() override { return Read().GetReliability(); }
  Result<int64_t> CountUnfinishedJobs(const std::string& owner) override {
    return Read().CountUnfinishedJobs(owner);
  }
  Result<std::string> OwnerOf(const std::string& id) override { return Read().OwnerOf(id); }
  Result<std::string> QueueOf(const std::string& id) override { return Read().QueueOf(id); }
  Result<std::string> JobOfRequest(const std::string& owner,
                                   const std::string& client_request_id) override {
    return Read().JobOfRequest(owner, client_request_id);
  }
  Result<std::vector<AuditRecord>> ListAudit(const AuditQuery& query) override {
    return Read().ListAudit(query);
  }
  Result<bool> AuditChainHolds() override { return Read().AuditChainHolds(); }
  Result<std::vector<LogRecord>> ReadLogs(const LogQuery& query) override {
    return Read().ReadLogs(query);
  }
  Result<int64_t> TailCursor(const LogQuery& query, int64_t lines) override {
    return Read().TailCursor(query, lines);
  }

 protected:
  /// Where each question goes.
  virtual Store& Read() { return store_; }

 private:
  Store& store_;
};

}  // namespace weft::coordinator
