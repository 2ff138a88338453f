#include "coordinator/store/sqlite_store.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "common/failpoint.h"
#include "coordinator/store/sqlite_write.h"

namespace weft::coordinator {

Result<std::unique_ptr<SqliteStore>> SqliteStore::Open(SqliteOptions options) {
  std::unique_ptr<SqliteStore> store(new SqliteStore(std::move(options)));
  WEFT_RETURN_IF_ERROR(store->OpenConnections());
  store->thread_ = std::thread([raw = store.get()] { raw->WriterLoop(); });
  return store;
}

Status SqliteStore::OpenConnections() {
  const std::string& path = options_.path;
  const auto open = [&](bool alone) -> Status {
    reader_.reset();
    writer_.reset();
    WEFT_ASSIGN_OR_RETURN(writer_, SqliteDb::Open(path, alone));
    WEFT_RETURN_IF_ERROR(Migrate(*writer_, path, Migrations()));
    if (!alone && path != ":memory:") {
      WEFT_ASSIGN_OR_RETURN(reader_, SqliteDb::Open(path));
    }
    // Files that are made at the first read are made now.
    return (reader_ ? reader_ : writer_)->Exec("SELECT count(*) FROM calibrations");
  };
  Status opened = open(false);
  if (opened.code() != StatusCode::kExhausted || path == ":memory:") return opened;
  WEFT_RETURN_IF_ERROR(open(true));
  SetWritable(opened);
  return OkStatus();
}

Status SqliteStore::Writable() const {
  std::lock_guard lock(mutex_);
  return writable_;
}

void SqliteStore::SetWritable(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (writable_.code() == status.code()) return;
    writable_ = status;
  }
  if (options_.on_writable) options_.on_writable(status);
}

void SqliteStore::Probe() {
  Status status = Failpoint("coordinator.store.before_commit");
  {
    std::unique_lock lock(read_mutex_, std::defer_lock);
    if (reader_ == nullptr) lock.lock();
    // Writes the first page as it is.
    if (status.ok()) {
      status = writer_->Exec("PRAGMA user_version=" + std::to_string(Migrations().size()));
    }
  }
  if (status.ok() || status.code() == StatusCode::kExhausted) SetWritable(status);
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
      const auto ready = [&] { return stopping_ || !queue_.empty(); };
      if (writable_.ok()) {
        wake_.wait(lock, ready);
      } else if (!wake_.wait_for(lock, options_.probe_every, ready)) {
        lock.unlock();
        Probe();
        continue;
      }
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
  const bool writes = std::any_of(batch.begin(), batch.end(), [](const Operation& operation) {
    return !operation.transaction.empty();
  });
  if ((status.ok() && writes) || status.code() == StatusCode::kExhausted) SetWritable(status);
  if (status.ok()) {
    // The changes are durable; whatever happens now, they were made.
    (void)Failpoint("coordinator.store.after_commit");
    if (options_.on_commit) {
      std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      options_.on_commit(took.count(), static_cast<int64_t>(batch.size()));
    }
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (status.ok() && results[i].ok() && results[i]->audited) {
      batch[i].transaction.audit->stored = true;
    }
    batch[i].done(status.ok() ? std::move(results[i]) : Result<CommitResult>(status));
  }
}

}  // namespace weft::coordinator
