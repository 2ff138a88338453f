#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace weft::coordinator {

/// A failure of SQLite in Weft's terms: full disk kExhausted, damaged file kCorrupt, locked
/// kUnavailable, broken constraint kConflict.
Status SqliteError(sqlite3* db, std::string_view what);

class SqliteDb;

/// One run of a prepared statement: bind in order, then step. The statement is ready for its next
/// run when this object ends. Must not outlive its SqliteDb.
class SqliteQuery {
 public:
  SqliteQuery(SqliteDb& db, std::string_view sql);
  ~SqliteQuery();
  SqliteQuery(const SqliteQuery&) = delete;
  SqliteQuery& operator=(const SqliteQuery&) = delete;

  /// Binds the next parameter.
  SqliteQuery& Bind(int64_t value);
  SqliteQuery& Bind(double value);
  SqliteQuery& Bind(std::string_view value);
  template <class T>
  SqliteQuery& Bind(const std::optional<T>& value) {
    if (value) return Bind(*value);
    ++bound_;
    return *this;
  }

  /// True with a row, false at the end.
  Result<bool> Step();
  /// For statements without rows.
  Status Run();

  /// Columns of the row, read from left to right.
  int64_t Int();
  double Real();
  std::string Text();
  std::optional<double> OptionalReal();
  std::optional<int64_t> OptionalInt();

 private:
  SqliteDb& db_;
  sqlite3_stmt* statement_ = nullptr;
  Status status_;
  int bound_ = 0;
  int column_ = 0;
};

/// One connection with its prepared statements. Not thread-safe.
class SqliteDb {
 public:
  /// Opens or creates `path` (":memory:" for none) in WAL mode with synchronous=FULL: a commit
  /// that returned survives power loss.
  /// With `alone` no other connection can have the file, and nothing is written to open it: so a
  /// full disk can be read.
  static Result<std::unique_ptr<SqliteDb>> Open(const std::string& path, bool alone = false);
  ~SqliteDb();
  SqliteDb(const SqliteDb&) = delete;
  SqliteDb& operator=(const SqliteDb&) = delete;

  /// Runs statements without parameters.
  Status Exec(const std::string& sql);
  sqlite3* handle() const { return db_; }

 private:
  friend class SqliteQuery;
  SqliteDb() = default;

  sqlite3* db_ = nullptr;
  std::map<std::string, sqlite3_stmt*, std::less<>> statements_;
};

/// Brings the database to schema version migrations.size(), each script in one transaction, after
/// a copy of an older database to "<path>.v<N>.backup". kConflict when the database is newer.
Status Migrate(SqliteDb& db, const std::string& path, std::span<const char* const> migrations);

/// The scripts of this version of Weft.
std::span<const char* const> Migrations();

}  // namespace weft::coordinator
