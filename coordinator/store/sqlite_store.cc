#include "coordinator/store/sqlite_store.h"

#include <chrono>
#include <optional>

#include "common/failpoint.h"
#include "coordinator/store/sqlite_write.h"

namespace weft::coordinator {

Result<std::unique_ptr<SqliteStore>> SqliteStore::Open(SqliteOptions options) {
  std::unique_ptr<SqliteStore> store(new SqliteStore(std::move(options)));
  const std::string& path = store->options_.path;
  WEFT_ASSIGN_OR_RETURN(store->writer_, SqliteDb::Open(path));
  WEFT_RETURN_IF_ERROR(Migrate(*store->writer_, path, Migrations()));
  if (path != ":memory:") {
    WEFT_ASSIGN_OR_RETURN(store->reader_, SqliteDb::Open(path));
  }
  store->thread_ = std::thread([raw = store.get()] { raw->WriterLoop(); });
  return store;
}

SqliteStore::~SqliteStore() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void SqliteStore::Commit(Transaction transaction, std::function<void(Result<CommitResult>)> done) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back({std::move(transaction), std::move(done)});
  }
  wake_.notify_one();
}

void SqliteStore::WriterLoop() {
  while (true) {
    std::deque<Operation> batch;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      while (!queue_.empty() && static_cast<int64_t>(batch.size()) < options_.max_batch) {
        batch.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    RunBatch(batch);
  }
}

void SqliteStore::RunBatch(std::deque<Operation>& batch) {
  auto begin = std::chrono::steady_clock::now();
  std::vector<Result<CommitResult>> results;
  Status status;
  {
    std::unique_lock lock(read_mutex_, std::defer_lock);
    if (reader_ == nullptr) lock.lock();
    status = writer_->Exec("BEGIN IMMEDIATE");
    for (size_t i = 0; status.ok() && i < batch.size(); ++i) {
      status = writer_->Exec("SAVEPOINT change");
      if (!status.ok()) break;
      results.push_back(
          WriteTransaction(*writer_, batch[i].transaction, options_.log_bytes_per_job));
      const Status& written = results.back().status();
      // A conflict is this change's own; anything else (full disk, damage) hits the whole batch.
      if (!written.ok() && written.code() != StatusCode::kConflict) {
        status = written;
        break;
      }
      status =
          writer_->Exec(written.ok() ? "RELEASE change" : "ROLLBACK TO change; RELEASE change");
    }
    if (status.ok()) status = Failpoint("coordinator.store.before_commit");
    if (status.ok()) status = writer_->Exec("COMMIT");
    if (!status.ok() && sqlite3_get_autocommit(writer_->handle()) == 0) {
      (void)writer_->Exec("ROLLBACK");
    }
  }
  if (status.ok()) {
    // The changes are durable; whatever happens now, they were made.
    (void)Failpoint("coordinator.store.after_commit");
    if (options_.on_commit) {
      std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      options_.on_commit(took.count(), static_cast<int64_t>(batch.size()));
    }
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].done(status.ok() ? std::move(results[i]) : Result<CommitResult>(status));
  }
}

}  // namespace weft::coordinator
