#include "coordinator/store/sqlite_db.h"

#include <cerrno>

namespace weft::coordinator {

namespace {

/// The disk is full, this process or user may not use more of it, or it takes no writes.
bool IsOutOfSpace(sqlite3* db) {
  const int code = sqlite3_errcode(db) & 0xff;
  if (code == SQLITE_FULL) return true;
  // SQLite calls only ENOSPC full; of a quota or a limit it says that it could not write.
  const int extended = sqlite3_extended_errcode(db);
  if (extended == SQLITE_IOERR_WRITE || extended == SQLITE_IOERR_SHMSIZE) return true;
  const int cause = sqlite3_system_errno(db);
  return (code == SQLITE_IOERR || code == SQLITE_CANTOPEN) &&
         (cause == ENOSPC || cause == EDQUOT || cause == EFBIG);
}

}  // namespace

Status SqliteError(sqlite3* db, std::string_view what) {
  std::string message = std::string(what) + ": " + sqlite3_errmsg(db);
  if (IsOutOfSpace(db)) {
    return ExhaustedError(message + "; hint: free space on the disk of --data-dir");
  }
  switch (sqlite3_errcode(db) & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return CorruptError(message + "; hint: restore the database from a copy");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return UnavailableError(message);
    case SQLITE_CONSTRAINT:
      return ConflictError(message);
    default:
      return InternalError(message);
  }
}

SqliteQuery::SqliteQuery(SqliteDb& db, std::string_view sql) : db_(db) {
  auto it = db.statements_.find(sql);
  if (it == db.statements_.end()) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v3(db.db_, sql.data(), static_cast<int>(sql.size()),
                           SQLITE_PREPARE_PERSISTENT, &statement, nullptr) != SQLITE_OK) {
      status_ = SqliteError(db.db_, "prepare a statement");
      return;
    }
    it = db.statements_.emplace(std::string(sql), statement).first;
  }
  statement_ = it->second;
}

SqliteQuery::~SqliteQuery() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

SqliteQuery& SqliteQuery::Bind(int64_t value) {
  if (statement_ != nullptr) sqlite3_bind_int64(statement_, ++bound_, value);
  return *this;
}

SqliteQuery& SqliteQuery::Bind(double value) {
  if (statement_ != nullptr) sqlite3_bind_double(statement_, ++bound_, value);
  return *this;
}

SqliteQuery& SqliteQuery::Bind(std::string_view value) {
  if (statement_ != nullptr) {
    sqlite3_bind_text64(statement_, ++bound_, value.data() == nullptr ? "" : value.data(),
                        value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }
  return *this;
}

Result<bool> SqliteQuery::Step() {
  if (!status_.ok()) return status_;
  column_ = 0;
  int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return SqliteError(db_.db_, "run a statement");
}

Status SqliteQuery::Run() {
  return Step().status();
}

int64_t SqliteQuery::Int() {
  return sqlite3_column_int64(statement_, column_++);
}

double SqliteQuery::Real() {
  return sqlite3_column_double(statement_, column_++);
}

std::string SqliteQuery::Text() {
  int column = column_++;
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (text == nullptr) return "";
  return {text, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

std::optional<double> SqliteQuery::OptionalReal() {
  if (sqlite3_column_type(statement_, column_) == SQLITE_NULL) {
    ++column_;
    return std::nullopt;
  }
  return Real();
}

std::optional<int64_t> SqliteQuery::OptionalInt() {
  if (sqlite3_column_type(statement_, column_) == SQLITE_NULL) {
    ++column_;
    return std::nullopt;
  }
  return Int();
}

Result<std::unique_ptr<SqliteDb>> SqliteDb::Open(const std::string& path, bool alone) {
  std::unique_ptr<SqliteDb> db(new SqliteDb);
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX;
  if (sqlite3_open_v2(path.c_str(), &db->db_, flags, nullptr) != SQLITE_OK) {
    return SqliteError(db->db_, "open the database " + path);
  }
  sqlite3_busy_timeout(db->db_, 5000);
  // Without it the index of the log is a file that others can map.
  Status status = alone ? db->Exec("PRAGMA locking_mode=EXCLUSIVE") : OkStatus();
  if (!status.ok()) return status.WithContext("open the database " + path);
  status = db->Exec(
      "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
      "PRAGMA wal_autocheckpoint=1000; PRAGMA temp_store=MEMORY;"
      // In KiB. The kernel holds these pages too: more here is memory that fills for hours.
      "PRAGMA cache_size=-512");
  if (!status.ok()) return status.WithContext("open the database " + path);
  return db;
}

SqliteDb::~SqliteDb() {
  for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

Status SqliteDb::Exec(const std::string& sql) {
  if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    return SqliteError(db_, "run '" + sql.substr(0, 60) + "'");
  }
  return OkStatus();
}

}  // namespace weft::coordinator
