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
};

Result<int64_t> SchemaVersion(SqliteDb& db) {
  SqliteQuery query(db, "PRAGMA user_version");
  WEFT_ASSIGN_OR_RETURN(bool row, query.Step());
  return row ? query.Int() : 0;
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
    SqliteQuery copy(db, "VACUUM INTO ?");
    Status status = copy.Bind(path + ".v" + std::to_string(version) + ".backup").Run();
    if (!status.ok()) return status.WithContext("copy the database before its migration");
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
