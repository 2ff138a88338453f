#include "coordinator/store/sqlite_write.h"

#include <algorithm>
#include <cmath>

#include "common/spec/spec_text.h"

namespace weft::coordinator {
namespace {

/// JSON has no infinities; a stored progress must stay readable.
Progress Finite(Progress progress) {
  Progress::Fields(progress, []<class M>(const Field&, M& member) {
    if constexpr (std::is_same_v<M, double>) {
      if (!std::isfinite(member)) member = 0;
    } else if constexpr (std::is_same_v<M, std::optional<double>>) {
      if (member && !std::isfinite(*member)) member.reset();
    } else if constexpr (std::is_same_v<M, std::vector<double>>) {
      std::erase_if(member, [](double x) { return !std::isfinite(x); });
    }
  });
  return progress;
}

std::string PlacementsJson(const std::vector<PlacementRecord>& placements) {
  Json list = Json::array();
  for (const PlacementRecord& placement : placements) {
    list.push_back({{"worker", placement.worker_id},
                    {"ranks", placement.ranks},
                    {"state", Name(placement.state)}});
    if (placement.part != PlacementPart::kMember) list.back()["part"] = Name(placement.part);
  }
  return list.dump();
}

/// The numbers of a list, in the order of their columns.
void BindSummary(SqliteQuery& query, const Progress& progress) {
  query.Bind(progress.step).Bind(progress.steps_total).Bind(progress.loss);
  query.Bind(progress.validation_loss).Bind(progress.tokens_per_second);
  query.Bind(progress.eta_seconds);
}

/// Stores which jobs a new one comes after.
Status WriteDependencies(SqliteDb& db, const JobRecord& job) {
  for (const std::string& before : job.spec.scheduling.after) {
    SqliteQuery known(db, "SELECT 1 FROM jobs WHERE id = ?");
    WEFT_ASSIGN_OR_RETURN(const bool row, known.Bind(before).Step());
    if (!row) {
      return ConflictError("job " + before + ", which the new job " + job.id +
                           " comes after, does not exist any more");
    }
    SqliteQuery put(db, "INSERT OR IGNORE INTO job_dependencies (before_id, job_id) VALUES (?,?)");
    WEFT_RETURN_IF_ERROR(put.Bind(before).Bind(job.id).Run());
  }
  return OkStatus();
}

/// kConflict when there was a job of that id: who still knows it would take the new one for it.
Status CheckWasNotDeleted(SqliteDb& db, const std::string& job_id) {
  SqliteQuery known(db, "SELECT 1 FROM deleted_jobs WHERE id = ?");
  WEFT_ASSIGN_OR_RETURN(const bool row, known.Bind(job_id).Step());
  return row ? ConflictError("there was a job " + job_id + ", which was deleted") : OkStatus();
}

Status WriteJob(SqliteDb& db, const JobRecord& job, CommitResult& result) {
  const Progress progress = Finite(job.progress);
  if (job.version == 0) {
    WEFT_RETURN_IF_ERROR(CheckWasNotDeleted(db, job.id));
    SqliteQuery insert(
        db,
        "INSERT INTO jobs (id, version, state, reason, message, submitted_at, started_at, "
        "ended_at, queued_at, run_dir, summary_json, spec_json, progress_json, last_epoch, "
        "budget_from, retried_from, queue, priority, job_group, owner, step, steps_total, loss, "
        "validation_loss, tokens_per_second, eta_seconds) "
        "VALUES (?,1,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    insert.Bind(job.id).Bind(Name(job.state)).Bind(Name(job.reason)).Bind(job.message);
    insert.Bind(job.submitted_at).Bind(job.started_at).Bind(job.ended_at).Bind(job.queued_at);
    insert.Bind(job.run_dir).Bind(job.summary_json).Bind(ToJsonText(job.spec));
    insert.Bind(ToJsonText(progress)).Bind(job.last_epoch).Bind(job.budget_from);
    insert.Bind(job.retried_from).Bind(job.queue).Bind(job.priority);
    insert.Bind(job.spec.scheduling.group).Bind(job.owner);
    BindSummary(insert, progress);
    WEFT_RETURN_IF_ERROR(insert.Run().WithContext("store the new job " + job.id));
    result.job_ordinal = sqlite3_last_insert_rowid(db.handle());
    WEFT_RETURN_IF_ERROR(WriteDependencies(db, job));
  } else {
    SqliteQuery update(
        db,
        "UPDATE jobs SET version = version + 1, state = ?, reason = ?, message = ?, "
        "started_at = ?, ended_at = ?, queued_at = ?, run_dir = ?, summary_json = ?, "
        "progress_json = ?, last_epoch = ?, budget_from = ?, retried_from = ?, queue = ?, "
        "priority = ?, step = ?, steps_total = ?, loss = ?, validation_loss = ?, "
        "tokens_per_second = ?, eta_seconds = ? WHERE id = ? AND version = ?");
    update.Bind(Name(job.state)).Bind(Name(job.reason)).Bind(job.message);
    update.Bind(job.started_at).Bind(job.ended_at).Bind(job.queued_at).Bind(job.run_dir);
    update.Bind(job.summary_json).Bind(ToJsonText(progress));
    update.Bind(job.last_epoch).Bind(job.budget_from).Bind(job.retried_from);
    update.Bind(job.queue).Bind(job.priority);
    BindSummary(update, progress);
    update.Bind(job.id).Bind(job.version);
    WEFT_RETURN_IF_ERROR(update.Run());
    if (sqlite3_changes64(db.handle()) != 1) {
      return ConflictError("job " + job.id + " is not at version " + std::to_string(job.version) +
                           " any more");
    }
    result.job_ordinal = job.ordinal;
  }
  result.job_version = job.version + 1;
  return OkStatus();
}

Status WriteAttempt(SqliteDb& db, const AttemptRecord& attempt) {
  SqliteQuery newest(db, "SELECT max(epoch) FROM attempts WHERE job_id = ?");
  WEFT_ASSIGN_OR_RETURN(bool row, newest.Bind(attempt.job_id).Step());
  int64_t last = row ? newest.Int() : 0;
  if (attempt.epoch <= last) {
    SqliteQuery known(db, "SELECT 1 FROM attempts WHERE job_id = ? AND epoch = ?");
    WEFT_ASSIGN_OR_RETURN(bool exists, known.Bind(attempt.job_id).Bind(attempt.epoch).Step());
    if (!exists) {
      return ConflictError("attempt " + std::to_string(attempt.epoch) + " of job " +
                           attempt.job_id + " is not newer than attempt " + std::to_string(last));
    }
  }
  SqliteQuery put(db,
                  "INSERT OR REPLACE INTO attempts (job_id, epoch, started_at, ended_at, reason, "
                  "message, plan_json, first_step, last_step, shares_json, times_json, membership) "
                  "VALUES (?,?,?,?,?,?,?,?,?,?,?,?)");
  put.Bind(attempt.job_id).Bind(attempt.epoch).Bind(attempt.started_at).Bind(attempt.ended_at);
  put.Bind(Name(attempt.reason)).Bind(attempt.message).Bind(ToJsonText(attempt.plan));
  put.Bind(attempt.first_step).Bind(attempt.last_step).Bind(PlacementsJson(attempt.placements));
  put.Bind(ToJsonText(attempt.times)).Bind(attempt.membership);
  return put.Run().WithContext("store attempt " + std::to_string(attempt.epoch) + " of job " +
                               attempt.job_id);
}

/// Deletes the oldest lines until nine tenths of the limit are left, so that not every append
/// deletes.
Status TrimLogs(SqliteDb& db, const std::string& job_id, int64_t& bytes, int64_t limit) {
  if (bytes <= limit) return OkStatus();
  int64_t target = limit / 10 * 9;
  int64_t cut = 0;
  {
    SqliteQuery lines(db,
                      "SELECT sequence, length(CAST(text AS BLOB)) FROM logs WHERE job_id = ? "
                      "ORDER BY sequence");
    lines.Bind(job_id);
    while (bytes > target) {
      WEFT_ASSIGN_OR_RETURN(bool row, lines.Step());
      if (!row) break;
      cut = lines.Int();
      bytes -= lines.Int();
    }
  }
  SqliteQuery remove(db, "DELETE FROM logs WHERE job_id = ? AND sequence <= ?");
  return remove.Bind(job_id).Bind(cut).Run();
}

Status WriteLogs(SqliteDb& db, const LogAppend& logs, int64_t limit, CommitResult& result) {
  int64_t position = 0;
  {
    SqliteQuery source(
        db, "SELECT position FROM log_sources WHERE job_id = ? AND epoch = ? AND worker_id = ?");
    source.Bind(logs.job_id).Bind(logs.epoch).Bind(logs.worker_id);
    WEFT_ASSIGN_OR_RETURN(bool row, source.Step());
    if (row) position = source.Int();
  }
  if (logs.follows && position + 1 < logs.first_position) {
    return ConflictError("lines " + std::to_string(position + 1) + " to " +
                         std::to_string(logs.first_position - 1) + " of the log of job " +
                         logs.job_id + " on worker " + logs.worker_id + " are not stored");
  }
  int64_t last = 0;
  int64_t bytes = 0;
  {
    SqliteQuery head(db, "SELECT last_sequence, bytes FROM log_heads WHERE job_id = ?");
    WEFT_ASSIGN_OR_RETURN(bool row, head.Bind(logs.job_id).Step());
    if (row) {
      last = head.Int();
      bytes = head.Int();
    }
  }
  auto known = static_cast<size_t>(std::max<int64_t>(0, position + 1 - logs.first_position));
  for (size_t i = known; i < logs.lines.size(); ++i) {
    const LogRecord& line = logs.lines[i];
    SqliteQuery insert(db,
                       "INSERT INTO logs (job_id, sequence, epoch, rank, is_stderr, time, text) "
                       "VALUES (?,?,?,?,?,?,?)");
    insert.Bind(logs.job_id).Bind(++last).Bind(logs.epoch).Bind(line.rank);
    insert.Bind(int64_t{line.is_stderr}).Bind(line.time).Bind(line.text);
    WEFT_RETURN_IF_ERROR(insert.Run());
    bytes += static_cast<int64_t>(line.text.size());
    position = logs.first_position + static_cast<int64_t>(i);
  }
  WEFT_RETURN_IF_ERROR(TrimLogs(db, logs.job_id, bytes, limit));
  SqliteQuery put_source(db, "INSERT OR REPLACE INTO log_sources VALUES (?,?,?,?)");
  put_source.Bind(logs.job_id).Bind(logs.epoch).Bind(logs.worker_id).Bind(position);
  WEFT_RETURN_IF_ERROR(put_source.Run());
  SqliteQuery put_head(db, "INSERT OR REPLACE INTO log_heads VALUES (?,?,?)");
  WEFT_RETURN_IF_ERROR(put_head.Bind(logs.job_id).Bind(last).Bind(bytes).Run());
  result.log_position = position;
  result.last_log_sequence = last;
  return OkStatus();
}

Status WriteRun(SqliteDb& db, const RunRecord& run) {
  SqliteQuery put(db, "INSERT OR REPLACE INTO runs VALUES (?,?,?,?,?,?,?)");
  put.Bind(run.job_id).Bind(run.epoch).Bind(run.ended_at);
  put.Bind(ToJsonText(ClusterProfile{run.machines})).Bind(run.step_seconds);
  return put.Bind(run.timed_steps).Bind(run.memory_bytes).Run();
}

Status WriteCalibrations(SqliteDb& db, const std::vector<CalibrationRecord>& records) {
  WEFT_RETURN_IF_ERROR(db.Exec("DELETE FROM calibrations"));
  for (const CalibrationRecord& record : records) {
    SqliteQuery put(db, "INSERT INTO calibrations VALUES (?,?)");
    put.Bind(record.machine).Bind(ToJsonText(record.calibration));
    WEFT_RETURN_IF_ERROR(put.Run());
  }
  return OkStatus();
}

Status WriteLink(SqliteDb& db, const LinkRecord& link) {
  SqliteQuery put(db, "INSERT OR REPLACE INTO links VALUES (?,?,?,?,?,?,?)");
  put.Bind(link.machine_a).Bind(link.machine_b).Bind(link.host_a).Bind(link.host_b);
  return put.Bind(link.bytes_per_second).Bind(link.latency_seconds).Bind(link.measured_at).Run();
}

Status WriteSuspicion(SqliteDb& db, const SuspicionRecord& record) {
  if (record.suspicion <= 0) {
    SqliteQuery forget(db, "DELETE FROM suspicions WHERE worker_id = ?");
    return forget.Bind(record.worker_id).Run();
  }
  SqliteQuery put(db, "INSERT OR REPLACE INTO suspicions VALUES (?,?,?)");
  return put.Bind(record.worker_id).Bind(record.suspicion).Bind(record.at).Run();
}

Status AddReliability(SqliteDb& db, const ReliabilityRecord& record) {
  SqliteQuery add(db,
                  "UPDATE reliability SET device_seconds = device_seconds + ?, "
                  "failures = failures + ?");
  return add.Bind(record.device_seconds).Bind(record.failures).Run();
}

Status ForgetLinks(SqliteDb& db, const std::vector<std::string>& machines) {
  for (const std::string& machine : machines) {
    SqliteQuery forget(db, "DELETE FROM links WHERE machine_a = ? OR machine_b = ?");
    WEFT_RETURN_IF_ERROR(forget.Bind(machine).Bind(machine).Run());
  }
  return OkStatus();
}

Status WriteWorkerScheduling(SqliteDb& db, const WorkerSchedulingRecord& record) {
  if (record.scheduling == WorkerScheduling::kSchedulable) {
    SqliteQuery forget(db, "DELETE FROM worker_scheduling WHERE worker_id = ?");
    return forget.Bind(record.worker_id).Run();
  }
  SqliteQuery put(db, "INSERT OR REPLACE INTO worker_scheduling VALUES (?,?,?)");
  return put.Bind(record.worker_id).Bind(Name(record.scheduling)).Bind(record.why).Run();
}

Status ForgetCheckpoints(SqliteDb& db, const CheckpointRecord& newest,
                         const CheckpointRetention& retention) {
  SqliteQuery forget(db,
                     "DELETE FROM checkpoints WHERE job_id = ? AND step < ? AND step > ? AND "
                     "step IS NOT ? AND step NOT IN (SELECT step FROM checkpoints WHERE job_id = ? "
                     "AND step < ? AND "
                     "verified ORDER BY step DESC LIMIT ?)");
  forget.Bind(newest.job_id).Bind(newest.step).Bind(retention.after_step);
  forget.Bind(retention.resume_step);
  forget.Bind(newest.job_id).Bind(newest.step).Bind(std::max<int64_t>(retention.keep_last - 1, 0));
  return forget.Run();
}

/// kConflict while a job that comes after this one has not ended.
Status CheckNoDependents(SqliteDb& db, const std::string& job_id) {
  SqliteQuery waiting(
      db,
      "SELECT jobs.id FROM job_dependencies JOIN jobs ON jobs.id = job_dependencies.job_id "
      "WHERE before_id = ? AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') LIMIT 1");
  WEFT_ASSIGN_OR_RETURN(const bool row, waiting.Bind(job_id).Step());
  if (!row) return OkStatus();
  return ConflictError("job " + job_id + " cannot be deleted while job " + waiting.Text() +
                       ", which comes after it, has not ended");
}

Status DeleteJob(SqliteDb& db, const JobDeletion& deletion) {
  SqliteQuery known(db, "SELECT 1 FROM jobs WHERE id = ? AND version = ?");
  WEFT_ASSIGN_OR_RETURN(bool row, known.Bind(deletion.id).Bind(deletion.version).Step());
  if (!row) {
    return ConflictError("job " + deletion.id + " is not at version " +
                         std::to_string(deletion.version) + " any more");
  }
  WEFT_RETURN_IF_ERROR(CheckNoDependents(db, deletion.id));
  for (const char* table : {"runs", "attempts", "request_ids", "checkpoints", "outbox", "events",
                            "logs", "log_sources", "log_heads", "job_dependencies"}) {
    SqliteQuery remove(db, "DELETE FROM " + std::string(table) + " WHERE job_id = ?");
    WEFT_RETURN_IF_ERROR(remove.Bind(deletion.id).Run());
  }
  SqliteQuery keep(db, "INSERT INTO deleted_jobs VALUES (?)");
  WEFT_RETURN_IF_ERROR(keep.Bind(deletion.id).Run());
  SqliteQuery remove(db, "DELETE FROM jobs WHERE id = ?");
  return remove.Bind(deletion.id).Run().WithContext("delete job " + deletion.id);
}

Status WriteFolderDeletion(SqliteDb& db, const FolderDeletionRecord& record) {
  SqliteQuery put(db, "INSERT OR REPLACE INTO folder_deletions VALUES (?,?)");
  return put.Bind(record.job_id).Bind(record.run_dir).Run();
}

Status EndFolderDeletion(SqliteDb& db, const std::string& job_id) {
  SqliteQuery remove(db, "DELETE FROM folder_deletions WHERE job_id = ?");
  return remove.Bind(job_id).Run();
}

Status TrimEvents(SqliteDb& db, int64_t keep) {
  SqliteQuery trim(db,
                   "DELETE FROM events WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER "
                   "(PARTITION BY job_id ORDER BY id DESC) AS place FROM events) WHERE place > ?)");
  return trim.Bind(keep).Run();
}

Status ForgetDeleted(SqliteDb& db, double before) {
  SqliteQuery forget(db, "DELETE FROM events WHERE kind = 'deleted' AND time < ?");
  return forget.Bind(before).Run();
}

}  // namespace

Result<CommitResult> WriteTransaction(SqliteDb& db, const Transaction& transaction,
                                      int64_t log_bytes_per_job) {
  CommitResult result;
  if (!transaction.client_request_id.empty()) {
    SqliteQuery known(db,
                      "SELECT job_id FROM request_ids WHERE owner = ? AND client_request_id = ?");
    known.Bind(transaction.job->owner).Bind(transaction.client_request_id);
    WEFT_ASSIGN_OR_RETURN(bool row, known.Step());
    if (row) {
      result.existing_job_id = known.Text();
      return result;
    }
  }
  if (transaction.delete_job) WEFT_RETURN_IF_ERROR(DeleteJob(db, *transaction.delete_job));
  if (transaction.add_folder_deletion) {
    WEFT_RETURN_IF_ERROR(WriteFolderDeletion(db, *transaction.add_folder_deletion));
  }
  if (!transaction.end_folder_deletion.empty()) {
    WEFT_RETURN_IF_ERROR(EndFolderDeletion(db, transaction.end_folder_deletion));
  }
  if (transaction.job) WEFT_RETURN_IF_ERROR(WriteJob(db, *transaction.job, result));
  if (!transaction.client_request_id.empty()) {
    SqliteQuery insert(db, "INSERT INTO request_ids VALUES (?,?,?)");
    insert.Bind(transaction.job->owner).Bind(transaction.client_request_id);
    insert.Bind(transaction.job->id);
    WEFT_RETURN_IF_ERROR(insert.Run());
  }
  if (transaction.attempt) WEFT_RETURN_IF_ERROR(WriteAttempt(db, *transaction.attempt));
  for (const EventRecord& event : transaction.events) {
    SqliteQuery insert(db,
                       "INSERT INTO events (job_id, epoch, time, kind, text) VALUES (?,?,?,?,?)");
    insert.Bind(event.job_id).Bind(event.epoch).Bind(event.time).Bind(event.kind);
    WEFT_RETURN_IF_ERROR(insert.Bind(event.text).Run());
  }
  for (const IntentRecord& intent : transaction.add_intents) {
    SqliteQuery insert(db, "INSERT OR REPLACE INTO outbox VALUES (?,?,?,?,?)");
    insert.Bind(intent.worker_id).Bind(intent.job_id).Bind(intent.epoch);
    insert.Bind(static_cast<int64_t>(intent.kind)).Bind(int64_t{intent.graceful});
    WEFT_RETURN_IF_ERROR(insert.Run());
  }
  for (const IntentRecord& intent : transaction.remove_intents) {
    SqliteQuery remove(
        db, "DELETE FROM outbox WHERE worker_id = ? AND job_id = ? AND epoch = ? AND kind = ?");
    remove.Bind(intent.worker_id).Bind(intent.job_id).Bind(intent.epoch);
    WEFT_RETURN_IF_ERROR(remove.Bind(static_cast<int64_t>(intent.kind)).Run());
  }
  if (transaction.checkpoint) {
    const CheckpointRecord& checkpoint = *transaction.checkpoint;
    SqliteQuery put(db, "INSERT OR REPLACE INTO checkpoints VALUES (?,?,?,?,?,?,?)");
    put.Bind(checkpoint.job_id).Bind(checkpoint.step).Bind(checkpoint.epoch);
    put.Bind(checkpoint.path).Bind(checkpoint.bytes).Bind(int64_t{checkpoint.verified});
    WEFT_RETURN_IF_ERROR(put.Bind(checkpoint.created_at).Run());
    if (transaction.retention) {
      WEFT_RETURN_IF_ERROR(ForgetCheckpoints(db, checkpoint, *transaction.retention));
    }
  }
  if (transaction.run) WEFT_RETURN_IF_ERROR(WriteRun(db, *transaction.run));
  if (transaction.calibrations) {
    WEFT_RETURN_IF_ERROR(WriteCalibrations(db, *transaction.calibrations));
  }
  WEFT_RETURN_IF_ERROR(ForgetLinks(db, transaction.forget_links_of));
  if (transaction.worker_scheduling) {
    WEFT_RETURN_IF_ERROR(WriteWorkerScheduling(db, *transaction.worker_scheduling));
  }
  if (transaction.link) WEFT_RETURN_IF_ERROR(WriteLink(db, *transaction.link));
  if (transaction.suspicion) WEFT_RETURN_IF_ERROR(WriteSuspicion(db, *transaction.suspicion));
  if (transaction.reliability) {
    WEFT_RETURN_IF_ERROR(AddReliability(db, *transaction.reliability));
  }
  if (transaction.keep_events) {
    WEFT_RETURN_IF_ERROR(TrimEvents(db, *transaction.keep_events));
  }
  if (transaction.forget_deleted_before) {
    WEFT_RETURN_IF_ERROR(ForgetDeleted(db, *transaction.forget_deleted_before));
  }
  if (transaction.logs) {
    WEFT_RETURN_IF_ERROR(WriteLogs(db, *transaction.logs, log_bytes_per_job, result));
  }
  if (transaction.audit != nullptr) {
    WEFT_RETURN_IF_ERROR(WriteAudit(db, transaction.audit->record));
    result.audited = true;
  }
  return result;
}

}  // namespace weft::coordinator
