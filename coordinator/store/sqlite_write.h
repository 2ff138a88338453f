#pragma once

#include "coordinator/store/sqlite_db.h"
#include "coordinator/store/store.h"

namespace weft::coordinator {

/// Writes one change inside the open transaction of `db`. On an error the caller rolls back.
Result<CommitResult> WriteTransaction(SqliteDb& db, const Transaction& transaction,
                                      int64_t log_bytes_per_job);

}  // namespace weft::coordinator
