#include "common/env.h"
#include "coordinator/store/sqlite_db.h"

namespace weft::coordinator {
namespace {

constexpr const char* kMigrations[] = {
    R"sql(
CREATE TABLE jobs (
  ordinal INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  version INTEGER NOT NULL,
  state TEXT NOT NULL,
  reason TEXT NOT NULL,
  message TEXT NOT NULL,
  submitted_at REAL NOT NULL,
  started_at REAL,
  ended_at REAL,
  queued_at REAL NOT NULL,
  run_dir TEXT NOT NULL,
  summary_json TEXT NOT NULL,
  spec_json TEXT NOT NULL,
  progress_json TEXT NOT NULL,
  last_epoch INTEGER NOT NULL,
  budget_from INTEGER NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state, ordinal);
CREATE TABLE request_ids (
  client_request_id TEXT PRIMARY KEY,
  job_id TEXT NOT NULL REFERENCES jobs (id)
) WITHOUT ROWID;
CREATE TABLE attempts (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  epoch INTEGER NOT NULL,
  started_at REAL NOT NULL,
  ended_at REAL,
  reason TEXT NOT NULL,
  message TEXT NOT NULL,
  plan_json TEXT NOT NULL,
  first_step INTEGER,
  last_step INTEGER NOT NULL,
  shares_json TEXT NOT NULL,
  PRIMARY KEY (job_id, epoch)
) WITHOUT ROWID;
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  time REAL NOT NULL,
  kind TEXT NOT NULL,
  text TEXT NOT NULL
);
CREATE INDEX events_by_job ON events (job_id, id);
CREATE TABLE outbox (
  worker_id TEXT NOT NULL,
  job_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  graceful INTEGER NOT NULL,
  PRIMARY KEY (worker_id, job_id, epoch, kind)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
  job_id TEXT NOT NULL,
  step INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  path TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  verified INTEGER NOT NULL,
  created_at REAL NOT NULL,
  PRIMARY KEY (job_id, step)
) WITHOUT ROWID;
CREATE TABLE logs (
  job_id TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  is_stderr INTEGER NOT NULL,
  time REAL NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (job_id, sequence)
) WITHOUT ROWID;
CREATE TABLE log_sources (
  job_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  worker_id TEXT NOT NULL,
  position INTEGER NOT NULL,
  PRIMARY KEY (job_id, epoch, worker_id)
) WITHOUT ROWID;
CREATE TABLE log_heads (
  job_id TEXT PRIMARY KEY,
  last_sequence INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) WITHOUT ROWID;
)sql",
    R"sql(
CREATE TABLE runs (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  epoch INTEGER NOT NULL,
  ended_at REAL NOT NULL,
  machines_json TEXT NOT NULL,
  step_seconds REAL NOT NULL,
  timed_steps INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  PRIMARY KEY (job_id, epoch)
) WITHOUT ROWID;
CREATE INDEX runs_by_end ON runs (ended_at);
CREATE TABLE calibrations (
  machine TEXT PRIMARY KEY,
  calibration_json TEXT NOT NULL
) WITHOUT ROWID;
)sql",
    // What lists show, in columns and in an index that holds all of them: rows of jobs are large.
    R"sql(
ALTER TABLE jobs ADD COLUMN step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN steps_total INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN loss REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN validation_loss REAL;
ALTER TABLE jobs ADD COLUMN tokens_per_second REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN eta_seconds REAL NOT NULL DEFAULT 0;
UPDATE jobs SET
  step = coalesce(json_extract(progress_json, '$.step'), 0),
  steps_total = coalesce(json_extract(progress_json, '$.steps_total'), 0),
  loss = coalesce(json_extract(progress_json, '$.loss'), 0),
  validation_loss = json_extract(progress_json, '$.validation_loss'),
  tokens_per_second = coalesce(json_extract(progress_json, '$.tokens_per_second'), 0),
  eta_seconds = coalesce(json_extract(progress_json, '$.eta_seconds'), 0)
  WHERE json_valid(progress_json);
CREATE INDEX jobs_listed ON jobs (ordinal, id, version, state, reason, message, submitted_at,
  started_at, ended_at, run_dir, last_epoch, step, steps_total, loss, validation_loss,
  tokens_per_second, eta_seconds);
CREATE INDEX request_ids_by_job ON request_ids (job_id);
CREATE INDEX jobs_by_end ON jobs (ended_at) WHERE ended_at IS NOT NULL;
)sql",
    // What techniques measure has become a map, which the next step of a run fills.
    R"sql(
UPDATE jobs SET progress_json = json_remove(progress_json, '$.gradient_noise_scale')
  WHERE json_valid(progress_json);
)sql",
    R"sql(
CREATE TABLE links (
  machine_a TEXT NOT NULL,
  machine_b TEXT NOT NULL,
  host_a TEXT NOT NULL,
  host_b TEXT NOT NULL,
  bytes_per_second REAL NOT NULL,
  latency_seconds REAL NOT NULL,
  measured_at REAL NOT NULL,
  PRIMARY KEY (machine_a, machine_b)
) WITHOUT ROWID;
)sql",
    // Where jobs are in the queues, also in the index that lists read; what is said of workers.
    R"sql(
ALTER TABLE jobs ADD COLUMN retried_from INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';
ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN job_group TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
DROP INDEX jobs_listed;
CREATE INDEX jobs_listed ON jobs (ordinal, id, version, state, reason, message, submitted_at,
  started_at, ended_at, run_dir, last_epoch, step, steps_total, loss, validation_loss,
  tokens_per_second, eta_seconds, queue, priority, job_group, owner);
CREATE INDEX jobs_by_group ON jobs (job_group, ordinal) WHERE job_group <> '';
CREATE TABLE worker_scheduling (
  worker_id TEXT PRIMARY KEY,
  scheduling TEXT NOT NULL,
  why TEXT NOT NULL
) WITHOUT ROWID;
)sql",
    // The time of attempts that ran before this counts as useful from their start.
    R"sql(
ALTER TABLE attempts ADD COLUMN times_json TEXT NOT NULL DEFAULT '{}';
CREATE TABLE suspicions (
  worker_id TEXT PRIMARY KEY,
  suspicion REAL NOT NULL,
  at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE reliability (
  device_seconds REAL NOT NULL,
  failures INTEGER NOT NULL
);
INSERT INTO reliability VALUES (0, 0);
)sql",
    // Who did what. AUTOINCREMENT shows when the newest records are missing.
    R"sql(
CREATE INDEX jobs_by_owner ON jobs (owner, state);
CREATE TABLE audit (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  time REAL NOT NULL,
  who TEXT NOT NULL,
  role TEXT NOT NULL,
  peer TEXT NOT NULL,
  method TEXT NOT NULL,
  object TEXT NOT NULL,
  result TEXT NOT NULL,
  hash TEXT NOT NULL
);
)sql",
    // The audit log only grows. Whoever drops the triggers still breaks the chain of hashes.
    R"sql(
CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit
  WHEN EXISTS (SELECT 1 FROM audit WHERE sequence = NEW.sequence) BEGIN
  SELECT RAISE(ABORT, 'records of the audit log are not replaced');
END;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN
  SELECT RAISE(ABORT, 'records of the audit log are not changed');
END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit BEGIN
  SELECT RAISE(ABORT, 'records of the audit log are not deleted');
END;
)sql",
    "ALTER TABLE attempts ADD COLUMN membership INTEGER NOT NULL DEFAULT 0;",
    // Which jobs come after which: none is forgotten before those that wait for it.
    R"sql(
CREATE TABLE job_dependencies (
  before_id TEXT NOT NULL,
  job_id TEXT NOT NULL,
  PRIMARY KEY (before_id, job_id)
) WITHOUT ROWID;
CREATE INDEX job_dependencies_by_job ON job_dependencies (job_id);
INSERT OR IGNORE INTO job_dependencies
  SELECT list.value, jobs.id
  FROM jobs, json_each(CASE WHEN json_valid(spec_json) THEN spec_json ELSE '{}' END,
                       '$.scheduling.after') AS list;
)sql",
    // Run folders of jobs that are forgotten already.
    R"sql(
CREATE TABLE folder_deletions (
  job_id TEXT PRIMARY KEY,
  run_dir TEXT NOT NULL
) WITHOUT ROWID;
)sql",
    // Request ids are those of a person: that of the job so far.
    R"sql(
CREATE TABLE request_ids_of_owners (
  owner TEXT NOT NULL,
  client_request_id TEXT NOT NULL,
  job_id TEXT NOT NULL REFERENCES jobs (id),
  PRIMARY KEY (owner, client_request_id)
) WITHOUT ROWID;
INSERT INTO request_ids_of_owners
  SELECT jobs.owner, request_ids.client_request_id, request_ids.job_id
  FROM request_ids JOIN jobs ON jobs.id = request_ids.job_id;
DROP TABLE request_ids;
ALTER TABLE request_ids_of_owners RENAME TO request_ids;
CREATE INDEX request_ids_by_job ON request_ids (job_id);
)sql",
    // Ids of jobs that are forgotten, which no other job gets.
    R"sql(
CREATE TABLE deleted_jobs (id TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO deleted_jobs SELECT job_id FROM folder_deletions;
)sql",
};

Result<int64_t> SchemaVersion(SqliteDb& db) {
  SqliteQuery query(db, "PRAGMA user_version");
  WEFT_ASSIGN_OR_RETURN(bool row, query.Step());
  return row ? query.Int() : 0;
}

/// Has its name only when it is whole; half of one that a full disk left is no hindrance.
Status Copy(SqliteDb& db, const std::string& path) {
  Env& env = Env::Posix();
  const std::string part = path + ".part";
  if (env.FileExists(part)) WEFT_RETURN_IF_ERROR(env.RemoveFile(part));
  {
    SqliteQuery copy(db, "VACUUM INTO ?");
    WEFT_RETURN_IF_ERROR(copy.Bind(part).Run());
  }
  return env.Rename(part, path);
}

}  // namespace

std::span<const char* const> Migrations() {
  return kMigrations;
}

Status Migrate(SqliteDb& db, const std::string& path, std::span<const char* const> migrations) {
  WEFT_ASSIGN_OR_RETURN(int64_t version, SchemaVersion(db));
  auto newest = static_cast<int64_t>(migrations.size());
  if (version > newest) {
    return ConflictError("the database " + path + " has schema version " + std::to_string(version) +
                         ", but this weft-coordinator knows only " + std::to_string(newest) +
                         "; hint: run the newer version of Weft");
  }
  if (version > 0 && version < newest && path != ":memory:") {
    WEFT_RETURN_IF_ERROR(Copy(db, path + ".v" + std::to_string(version) + ".backup")
                             .WithContext("copy the database before its migration"));
  }
  for (; version < newest; ++version) {
    Status status = db.Exec("BEGIN IMMEDIATE;" + std::string(migrations[version]) +
                            ";PRAGMA user_version=" + std::to_string(version + 1) + ";COMMIT");
    if (!status.ok()) {
      (void)sqlite3_exec(db.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
      return status.WithContext("migrate " + path + " to schema " + std::to_string(version + 1));
    }
  }
  return OkStatus();
}

}  // namespace weft::coordinator
