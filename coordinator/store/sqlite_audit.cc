// The audit log: append-only, each record chained to the one before it.
#include "common/json.h"
#include "common/sha256.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/sqlite_write.h"

namespace weft::coordinator {
namespace {

constexpr std::string_view kColumns =
    "sequence, time, who, role, peer, method, object, result, hash";

AuditRecord ReadRecord(SqliteQuery& row) {
  AuditRecord record;
  record.sequence = row.Int();
  record.time = row.Real();
  for (std::string* text : {&record.who, &record.role, &record.peer, &record.method, &record.object,
                            &record.result, &record.hash}) {
    *text = row.Text();
  }
  return record;
}

}  // namespace

std::string AuditHash(const AuditRecord& record, const std::string& hash_before) {
  // JSON shows where one field ends and the next begins.
  const Json fields = {record.sequence, record.time,   record.who,    record.role, record.peer,
                       record.method,   record.object, record.result, hash_before};
  return Sha256Hex(fields.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Status WriteAudit(SqliteDb& db, const AuditRecord& record) {
  AuditRecord next = record;
  next.sequence = 1;
  std::string hash_before;
  {
    SqliteQuery newest(db, "SELECT sequence, hash FROM audit ORDER BY sequence DESC LIMIT 1");
    WEFT_ASSIGN_OR_RETURN(const bool row, newest.Step());
    if (row) {
      next.sequence = newest.Int() + 1;
      hash_before = newest.Text();
    }
  }
  SqliteQuery insert(db, "INSERT INTO audit VALUES (?,?,?,?,?,?,?,?,?)");
  insert.Bind(next.sequence).Bind(next.time).Bind(next.who).Bind(next.role).Bind(next.peer);
  insert.Bind(next.method).Bind(next.object).Bind(next.result);
  return insert.Bind(AuditHash(next, hash_before)).Run().WithContext("store an audit record");
}

Result<std::vector<AuditRecord>> SqliteStore::ListAudit(const AuditQuery& query) {
  std::lock_guard lock(read_mutex_);
  std::string sql = "SELECT " + std::string(kColumns) + " FROM audit WHERE sequence > ?";
  if (!query.who.empty()) sql += " AND who = ?";
  if (!query.object.empty()) sql += " AND object = ?";
  SqliteQuery rows(reader(), sql + " ORDER BY sequence LIMIT ?");
  rows.Bind(query.after_sequence);
  if (!query.who.empty()) rows.Bind(query.who);
  if (!query.object.empty()) rows.Bind(query.object);
  rows.Bind(query.limit);
  std::vector<AuditRecord> records;
  while (true) {
    WEFT_ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return records;
    records.push_back(ReadRecord(rows));
  }
}

Result<bool> SqliteStore::AuditChainHolds() {
  constexpr int64_t kPart = 5000;  // others read in between
  int64_t sequence = 0;
  std::string hash_before;
  while (true) {
    std::lock_guard lock(read_mutex_);
    const int64_t begin = sequence;
    SqliteQuery rows(reader(), "SELECT " + std::string(kColumns) +
                                   " FROM audit WHERE sequence > ? ORDER BY sequence LIMIT ?");
    rows.Bind(begin).Bind(kPart);
    while (true) {
      WEFT_ASSIGN_OR_RETURN(const bool row, rows.Step());
      if (!row) break;
      const AuditRecord record = ReadRecord(rows);
      if (record.sequence != ++sequence || record.hash != AuditHash(record, hash_before)) {
        return false;
      }
      hash_before = record.hash;
    }
    if (sequence > begin) continue;
    // SQLite remembers the largest number that it ever gave.
    SqliteQuery given(reader(), "SELECT seq FROM sqlite_sequence WHERE name = 'audit'");
    WEFT_ASSIGN_OR_RETURN(const bool row, given.Step());
    return (row ? given.Int() : 0) == sequence;
  }
}

}  // namespace weft::coordinator
