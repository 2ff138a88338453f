#include <algorithm>
#include <limits>

#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "coordinator/store/sqlite_store.h"

namespace weft::coordinator {
namespace {

constexpr std::string_view kJobColumns =
    "id, version, state, reason, message, submitted_at, started_at, ended_at, queued_at, run_dir, "
    "summary_json, spec_json, progress_json, last_epoch, budget_from, retried_from, queue, "
    "priority, owner, ordinal";

constexpr std::string_view kSummaryColumns =
    "id, state, reason, substr(message, 1, 200), submitted_at, started_at, ended_at, run_dir, "
    "step, "
    "steps_total, loss, validation_loss, tokens_per_second, eta_seconds, last_epoch, queue, "
    "priority, job_group, owner, version, ordinal";

template <class T>
Result<T> Decode(const std::string& json, const std::string& what) {
  Result<Json> value = ParseJson(json);
  if (!value.ok()) return CorruptError(what + ": " + value.status().message());
  Result<T> decoded = FromJson<T>(*value);
  if (!decoded.ok()) return CorruptError(what + ": " + decoded.status().message());
  return decoded;
}

template <class E>
Status DecodeName(std::optional<E> value, const std::string& what, E& out) {
  if (!value) return CorruptError(what + " has an unknown name of a state or reason");
  out = *value;
  return OkStatus();
}

Result<JobRecord> ReadJob(SqliteQuery& row) {
  JobRecord job;
  job.id = row.Text();
  std::string what = "stored job " + job.id;
  job.version = row.Int();
  WEFT_RETURN_IF_ERROR(DecodeName(JobStateFromName(row.Text()), what, job.state));
  WEFT_RETURN_IF_ERROR(DecodeName(ReasonFromName(row.Text()), what, job.reason));
  job.message = row.Text();
  job.submitted_at = row.Real();
  job.started_at = row.OptionalReal();
  job.ended_at = row.OptionalReal();
  job.queued_at = row.Real();
  job.run_dir = row.Text();
  job.summary_json = row.Text();
  WEFT_ASSIGN_OR_RETURN(job.spec, Decode<JobSpec>(row.Text(), what));
  WEFT_ASSIGN_OR_RETURN(job.progress, Decode<Progress>(row.Text(), what));
  job.last_epoch = row.Int();
  job.budget_from = row.Int();
  job.retried_from = row.Int();
  job.queue = row.Text();
  job.priority = row.Int();
  job.owner = row.Text();
  job.ordinal = row.Int();
  return job;
}

Result<JobSummary> ReadSummary(SqliteQuery& row) {
  JobSummary job;
  job.id = row.Text();
  const std::string what = "stored job " + job.id;
  WEFT_RETURN_IF_ERROR(DecodeName(JobStateFromName(row.Text()), what, job.state));
  WEFT_RETURN_IF_ERROR(DecodeName(ReasonFromName(row.Text()), what, job.reason));
  job.message = row.Text();
  job.submitted_at = row.Real();
  job.started_at = row.OptionalReal();
  job.ended_at = row.OptionalReal();
  job.run_dir = row.Text();
  job.progress.step = row.Int();
  job.progress.steps_total = row.Int();
  job.progress.loss = row.Real();
  job.progress.validation_loss = row.OptionalReal();
  job.progress.tokens_per_second = row.Real();
  job.progress.eta_seconds = row.Real();
  job.last_epoch = row.Int();
  job.queue = row.Text();
  job.priority = row.Int();
  job.group = row.Text();
  job.owner = row.Text();
  job.version = row.Int();
  job.ordinal = row.Int();
  return job;
}

Status ReadPlacements(const std::string& text, const std::string& what,
                      std::vector<PlacementRecord>& placements) {
  Result<Json> list = ParseJson(text);
  if (!list.ok() || !list->is_array()) return CorruptError(what + ": its shares are damaged");
  for (const Json& item : *list) {
    PlacementRecord placement;
    if (!item.is_object() || !item.contains("worker") || !item["worker"].is_string() ||
        !item.contains("ranks") || !item["ranks"].is_array() || !item.contains("state") ||
        !item["state"].is_string()) {
      return CorruptError(what + ": a placement is damaged");
    }
    placement.worker_id = item["worker"].get<std::string>();
    for (const Json& rank : item["ranks"]) {
      if (!rank.is_number_integer()) return CorruptError(what + ": a rank is damaged");
      placement.ranks.push_back(rank.get<int64_t>());
    }
    WEFT_RETURN_IF_ERROR(DecodeName(PlacementStateFromName(item["state"].get<std::string>()), what,
                                    placement.state));
    if (const auto part = item.find("part"); part != item.end()) {
      if (!part->is_string()) return CorruptError(what + ": a placement is damaged");
      WEFT_RETURN_IF_ERROR(
          DecodeName(PlacementPartFromName(part->get<std::string>()), what, placement.part));
    }
    placements.push_back(std::move(placement));
  }
  return OkStatus();
}

/// Rows of a query, each made by `read`.
template <class T, class Read>
Result<std::vector<T>> All(SqliteQuery& query, Read read) {
  std::vector<T> rows;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(bool more, query.Step());
    if (!more) return rows;
    Result<T> row = read(query);
    if (!row.ok()) return row.status();
    rows.push_back(std::move(*row));
  }
}

}  // namespace

Result<JobRecord> SqliteStore::GetJob(const std::string& id) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery query(reader(), "SELECT " + std::string(kJobColumns) + " FROM jobs WHERE id = ?");
  WEFT_ASSIGN_OR_RETURN(bool row, query.Bind(id).Step());
  if (!row) return NotFoundError("there is no job '" + id + "'; hint: weft job list");
  return ReadJob(query);
}

Result<std::vector<std::string>> SqliteStore::FindJobIds(const std::string& prefix, int64_t limit) {
  std::lock_guard lock(read_mutex_);
  // Ids are ASCII, so every id with the prefix sorts before prefix + DEL.
  SqliteQuery query(reader(), "SELECT id FROM jobs WHERE id >= ? AND id < ? ORDER BY id LIMIT ?");
  query.Bind(prefix).Bind(prefix + "\x7f").Bind(limit);
  return All<std::string>(query,
                          [](SqliteQuery& row) -> Result<std::string> { return row.Text(); });
}

std::string SqliteStore::ListJobsSql(const JobQuery& query) {
  std::string sql = "SELECT " + std::string(kSummaryColumns) + " FROM jobs";
  // All columns are in this index, which SQLite does not take by itself: the table has the order.
  // Few jobs of some states, or of a group, are found by their own index.
  if (query.states.empty() && query.group.empty()) sql += " INDEXED BY jobs_listed";
  sql += " WHERE ordinal < ?";
  for (size_t i = 0; i < query.states.size(); ++i) sql += i == 0 ? " AND state IN (?" : ",?";
  if (!query.states.empty()) sql += ')';
  if (!query.queue.empty()) sql += " AND queue = ?";
  // The index of groups is of those that have a name, which a parameter alone does not say.
  if (!query.group.empty()) sql += " AND job_group = ? AND job_group <> ''";
  if (!query.owner.empty()) sql += " AND owner = ?";
  return sql + " ORDER BY ordinal DESC LIMIT ?";
}

Result<std::vector<JobSummary>> SqliteStore::ListJobs(const JobQuery& query) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(), ListJobsSql(query));
  rows.Bind(query.before_ordinal > 0 ? query.before_ordinal : std::numeric_limits<int64_t>::max());
  for (JobState state : query.states) rows.Bind(Name(state));
  for (const std::string* value : {&query.queue, &query.group, &query.owner}) {
    if (!value->empty()) rows.Bind(*value);
  }
  rows.Bind(query.limit);
  return All<JobSummary>(rows, ReadSummary);
}

Result<std::vector<UnfinishedJob>> SqliteStore::ListUnfinished() {
  std::lock_guard lock(read_mutex_);
  // From the index alone: rows of jobs are large.
  SqliteQuery rows(reader(),
                   "SELECT id, state FROM jobs INDEXED BY jobs_listed WHERE state NOT IN "
                   "('SUCCEEDED', 'FAILED', 'CANCELLED') ORDER BY ordinal");
  return All<UnfinishedJob>(rows, [](SqliteQuery& row) -> Result<UnfinishedJob> {
    UnfinishedJob job;
    job.id = row.Text();
    WEFT_RETURN_IF_ERROR(
        DecodeName(JobStateFromName(row.Text()), "stored job " + job.id, job.state));
    return job;
  });
}

Result<std::vector<std::string>> SqliteStore::ListEndedBefore(double unix_seconds, int64_t limit) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT id FROM jobs WHERE ended_at < ? AND state IN "
                   "('SUCCEEDED', 'FAILED', 'CANCELLED') ORDER BY ended_at, ordinal LIMIT ?");
  rows.Bind(unix_seconds).Bind(limit);
  return All<std::string>(rows, [](SqliteQuery& row) -> Result<std::string> { return row.Text(); });
}

Result<int64_t> SqliteStore::CountUnfinishedJobs(const std::string& owner) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery query(reader(),
                    "SELECT count(*) FROM jobs WHERE owner = ? AND state NOT IN "
                    "('SUCCEEDED', 'FAILED', 'CANCELLED')");
  WEFT_ASSIGN_OR_RETURN(bool row, query.Bind(owner).Step());
  return row ? query.Int() : 0;
}

Result<std::string> SqliteStore::OwnerOf(const std::string& job_id) {
  return ReadText("owner", job_id);
}

Result<std::string> SqliteStore::QueueOf(const std::string& job_id) {
  return ReadText("queue", job_id);
}

Result<std::string> SqliteStore::JobOfRequest(const std::string& owner,
                                              const std::string& client_request_id) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery query(reader(),
                    "SELECT job_id FROM request_ids WHERE owner = ? AND client_request_id = ?");
  WEFT_ASSIGN_OR_RETURN(bool row, query.Bind(owner).Bind(client_request_id).Step());
  if (!row) return NotFoundError("no job was submitted as '" + client_request_id + "'");
  return query.Text();
}

Result<std::string> SqliteStore::ReadText(const char* column, const std::string& job_id) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery query(reader(), "SELECT " + std::string(column) + " FROM jobs WHERE id = ?");
  WEFT_ASSIGN_OR_RETURN(bool row, query.Bind(job_id).Step());
  if (!row) return NotFoundError("there is no job '" + job_id + "'; hint: weft job list");
  return query.Text();
}

Result<std::vector<AttemptRecord>> SqliteStore::ListAttempts(const std::string& job_id) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT epoch, started_at, ended_at, reason, message, plan_json, first_step, "
                   "last_step, shares_json, times_json, membership FROM attempts WHERE job_id = ? "
                   "ORDER BY epoch");
  rows.Bind(job_id);
  return All<AttemptRecord>(rows, [&](SqliteQuery& row) -> Result<AttemptRecord> {
    AttemptRecord attempt;
    attempt.job_id = job_id;
    attempt.epoch = row.Int();
    std::string what = "stored attempt " + std::to_string(attempt.epoch) + " of job " + job_id;
    attempt.started_at = row.Real();
    attempt.ended_at = row.OptionalReal();
    WEFT_RETURN_IF_ERROR(DecodeName(ReasonFromName(row.Text()), what, attempt.reason));
    attempt.message = row.Text();
    WEFT_ASSIGN_OR_RETURN(attempt.plan, Decode<Plan>(row.Text(), what));
    attempt.first_step = row.OptionalInt();
    attempt.last_step = row.Int();
    WEFT_RETURN_IF_ERROR(ReadPlacements(row.Text(), what, attempt.placements));
    WEFT_ASSIGN_OR_RETURN(attempt.times, Decode<AttemptTimes>(row.Text(), what));
    attempt.membership = row.Int();
    return attempt;
  });
}

Result<std::vector<EventRecord>> SqliteStore::ListEvents(const std::string& job_id) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT epoch, time, kind, text FROM events WHERE job_id = ? ORDER BY id");
  rows.Bind(job_id);
  return All<EventRecord>(rows, [&](SqliteQuery& row) -> Result<EventRecord> {
    int64_t epoch = row.Int();
    double time = row.Real();
    std::string kind = row.Text();
    return EventRecord{job_id, epoch, time, kind, row.Text()};
  });
}

Result<std::vector<IntentRecord>> SqliteStore::ListIntents() {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(), "SELECT worker_id, job_id, epoch, kind, graceful FROM outbox");
  return All<IntentRecord>(rows, [](SqliteQuery& row) -> Result<IntentRecord> {
    IntentRecord intent;
    intent.worker_id = row.Text();
    intent.job_id = row.Text();
    intent.epoch = row.Int();
    intent.kind = row.Int() == 0 ? IntentKind::kStart : IntentKind::kStop;
    intent.graceful = row.Int() != 0;
    return intent;
  });
}

Result<std::vector<FolderDeletionRecord>> SqliteStore::ListFolderDeletions() {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(), "SELECT job_id, run_dir FROM folder_deletions ORDER BY job_id");
  return All<FolderDeletionRecord>(rows, [](SqliteQuery& row) -> Result<FolderDeletionRecord> {
    FolderDeletionRecord record;
    record.job_id = row.Text();
    record.run_dir = row.Text();
    return record;
  });
}

Result<std::vector<CheckpointRecord>> SqliteStore::ListCheckpoints(const std::string& job_id) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT step, epoch, path, bytes, verified, created_at FROM checkpoints "
                   "WHERE job_id = ? ORDER BY step DESC");
  rows.Bind(job_id);
  return All<CheckpointRecord>(rows, [&](SqliteQuery& row) -> Result<CheckpointRecord> {
    CheckpointRecord checkpoint;
    checkpoint.job_id = job_id;
    checkpoint.step = row.Int();
    checkpoint.epoch = row.Int();
    checkpoint.path = row.Text();
    checkpoint.bytes = row.Int();
    checkpoint.verified = row.Int() != 0;
    checkpoint.created_at = row.Real();
    return checkpoint;
  });
}

Result<std::vector<RunRecord>> SqliteStore::ListRuns(int64_t limit) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT runs.job_id, runs.epoch, runs.ended_at, machines_json, step_seconds, "
                   "timed_steps, memory_bytes, spec_json, plan_json, "
                   // Counts the attempts before that ended a phase.
                   "(SELECT count(*) FROM attempts AS done WHERE done.job_id = runs.job_id AND "
                   "done.epoch < runs.epoch AND done.reason = 'COMPLETED') FROM runs "
                   "JOIN jobs ON jobs.id = runs.job_id "
                   "JOIN attempts ON attempts.job_id = runs.job_id AND attempts.epoch = runs.epoch "
                   "ORDER BY runs.ended_at DESC, runs.job_id, runs.epoch LIMIT ?");
  rows.Bind(limit);
  return All<RunRecord>(rows, [](SqliteQuery& row) -> Result<RunRecord> {
    RunRecord run;
    run.job_id = row.Text();
    run.epoch = row.Int();
    const std::string what = "stored run " + std::to_string(run.epoch) + " of job " + run.job_id;
    run.ended_at = row.Real();
    WEFT_ASSIGN_OR_RETURN(ClusterProfile machines, Decode<ClusterProfile>(row.Text(), what));
    run.machines = std::move(machines.workers);
    run.step_seconds = row.Real();
    run.timed_steps = row.Int();
    run.memory_bytes = row.Int();
    WEFT_ASSIGN_OR_RETURN(run.spec, Decode<JobSpec>(row.Text(), what));
    WEFT_ASSIGN_OR_RETURN(run.plan, Decode<Plan>(row.Text(), what));
    const auto phase = static_cast<size_t>(row.Int());
    run.spec = JobOfPhase(run.spec, std::min(phase, PhaseCount(run.spec) - 1));
    return run;
  });
}

Result<std::vector<CalibrationRecord>> SqliteStore::ListCalibrations() {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(), "SELECT machine, calibration_json FROM calibrations ORDER BY machine");
  return All<CalibrationRecord>(rows, [](SqliteQuery& row) -> Result<CalibrationRecord> {
    CalibrationRecord record;
    record.machine = row.Text();
    WEFT_ASSIGN_OR_RETURN(
        record.calibration,
        Decode<TimeCalibration>(row.Text(), "stored calibration of " + record.machine));
    return record;
  });
}

Result<std::vector<LinkRecord>> SqliteStore::ListLinks() {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT machine_a, machine_b, host_a, host_b, bytes_per_second, "
                   "latency_seconds, measured_at FROM links ORDER BY machine_a, machine_b");
  return All<LinkRecord>(rows, [](SqliteQuery& row) -> Result<LinkRecord> {
    LinkRecord link;
    link.machine_a = row.Text();
    link.machine_b = row.Text();
    link.host_a = row.Text();
    link.host_b = row.Text();
    link.bytes_per_second = row.Real();
    link.latency_seconds = row.Real();
    link.measured_at = row.Real();
    return link;
  });
}

Result<std::vector<WorkerSchedulingRecord>> SqliteStore::ListWorkerScheduling() {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT worker_id, scheduling, why FROM worker_scheduling ORDER BY worker_id");
  return All<WorkerSchedulingRecord>(rows, [](SqliteQuery& row) -> Result<WorkerSchedulingRecord> {
    WorkerSchedulingRecord record;
    record.worker_id = row.Text();
    WEFT_RETURN_IF_ERROR(DecodeName(WorkerSchedulingFromName(row.Text()),
                                    "stored worker " + record.worker_id, record.scheduling));
    record.why = row.Text();
    return record;
  });
}

Result<std::vector<SuspicionRecord>> SqliteStore::ListSuspicions() {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(), "SELECT worker_id, suspicion, at FROM suspicions ORDER BY worker_id");
  return All<SuspicionRecord>(rows, [](SqliteQuery& row) -> Result<SuspicionRecord> {
    SuspicionRecord record;
    record.worker_id = row.Text();
    record.suspicion = row.Real();
    record.at = row.Real();
    return record;
  });
}

Result<ReliabilityRecord> SqliteStore::GetReliability() {
  std::lock_guard lock(read_mutex_);
  SqliteQuery row(reader(), "SELECT device_seconds, failures FROM reliability");
  WEFT_ASSIGN_OR_RETURN(bool found, row.Step());
  if (!found) return CorruptError("the stored reliability of the machines is missing");
  ReliabilityRecord record;
  record.device_seconds = row.Real();
  record.failures = row.Int();
  return record;
}

Result<std::vector<LogRecord>> SqliteStore::ReadLogs(const LogQuery& query) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT sequence, epoch, rank, is_stderr, time, text FROM logs WHERE job_id = ? "
                   "AND sequence > ? AND (?3 IS NULL OR rank = ?3) AND (?4 IS NULL OR epoch = ?4) "
                   "ORDER BY sequence LIMIT ?");
  rows.Bind(query.job_id).Bind(query.after_sequence).Bind(query.rank).Bind(query.epoch);
  rows.Bind(query.limit);
  return All<LogRecord>(rows, [](SqliteQuery& row) -> Result<LogRecord> {
    LogRecord line;
    line.sequence = row.Int();
    line.epoch = row.Int();
    line.rank = row.Int();
    line.is_stderr = row.Int() != 0;
    line.time = row.Real();
    line.text = row.Text();
    return line;
  });
}

Result<int64_t> SqliteStore::TailCursor(const LogQuery& query, int64_t lines) {
  std::lock_guard lock(read_mutex_);
  SqliteQuery rows(reader(),
                   "SELECT sequence FROM logs WHERE job_id = ? AND sequence > ? AND "
                   "(?3 IS NULL OR rank = ?3) AND (?4 IS NULL OR epoch = ?4) "
                   "ORDER BY sequence DESC LIMIT 1 OFFSET ?");
  rows.Bind(query.job_id).Bind(query.after_sequence).Bind(query.rank).Bind(query.epoch);
  WEFT_ASSIGN_OR_RETURN(bool row, rows.Bind(lines).Step());
  return row ? rows.Int() : query.after_sequence;
}

}  // namespace weft::coordinator
