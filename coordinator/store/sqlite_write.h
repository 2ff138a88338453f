#pragma once

#include "coordinator/store/sqlite_db.h"
#include "coordinator/store/store.h"

namespace weft::coordinator {

/// Writes one change inside the open transaction of `db`. On an error the caller rolls back.
Result<CommitResult> WriteTransaction(SqliteDb& db, const Transaction& transaction,
                                      int64_t log_bytes_per_job);

/// Appends a record to the audit log, with the next number and the hash that follows.
Status WriteAudit(SqliteDb& db, const AuditRecord& record);

}  // namespace weft::coordinator
