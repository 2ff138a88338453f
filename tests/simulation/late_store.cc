#include "tests/simulation/late_store.h"

#include <algorithm>
#include <optional>

namespace weft::simulation {

using coordinator::CommitResult;
using coordinator::Transaction;
using std::chrono::microseconds;
using std::chrono::milliseconds;

void LateStore::Commit(Transaction transaction, std::function<void(Result<CommitResult>)> done) {
  // Nobody waits for it, but the service whose life ends here waits for an answer.
  if (dead_) return done(UnavailableError("the process has ended"));
  changes_.push_back({std::move(transaction), std::move(done)});
  const bool slow = timeline_.Chance(0.02);
  last_ = std::max(
      last_, timeline_.now() + timeline_.Between(microseconds(200), milliseconds(slow ? 800 : 8)));
  timeline_.After(last_ - timeline_.now(), [this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired() && !dead_) StoreFirst();
  });
}

void LateStore::StoreFirst() {
  Change change = std::move(changes_.front());
  changes_.pop_front();
  Result<CommitResult> result = StoreNow(change.transaction);
  last_answer_ =
      std::max(last_answer_, timeline_.now() + timeline_.Between(Duration(0), milliseconds(1)));
  timeline_.After(last_answer_ - timeline_.now(),
                  [this, alive = std::weak_ptr(alive_), done = std::move(change.done),
                   result = std::move(result)]() mutable {
                    if (!alive.expired() && !dead_) done(std::move(result));
                  });
}

Result<CommitResult> LateStore::StoreNow(const Transaction& transaction) {
  if (timeline_.now() < fails_until_) return ExhaustedError("the disk is full");
  Result<CommitResult> result = CommitAndWait(Read(), transaction);
  if (result.ok() && result->existing_job_id.empty()) stored_(transaction);
  return result;
}

void LateStore::Die() {
  int64_t stored = timeline_.Pick(std::ssize(changes_) + 1);
  for (; stored > 0; --stored) {
    (void)StoreNow(changes_.front().transaction);
    changes_.pop_front();
  }
  dead_ = true;
}

}  // namespace weft::simulation
