#include "tests/chaos/waiting_jobs.h"

#include <memory>
#include <utility>

#include "common/clock.h"
#include "common/env.h"
#include "coordinator/store/sqlite_store.h"

namespace weft::testing {
namespace {

constexpr int64_t kBatch = 1024;
constexpr int64_t kTooManyRanks = 64;

/// Number 0 is paused. Odd ones come after it, even ones want too many ranks.
coordinator::Transaction WaitingJob(const std::string& data_dir, int64_t number) {
  coordinator::JobRecord job;
  job.id = kWaitingPrefix + std::to_string(number);
  job.spec.name = "waiting";
  job.spec.data.train = {"/data/nowhere.txt"};
  job.run_dir = JoinPath(data_dir, "runs-of-waiting-jobs/" + job.id);
  job.submitted_at = job.queued_at = Clock::System().UnixSeconds();
  if (number == 0) {
    job.state = coordinator::JobState::kPaused;
    job.reason = coordinator::Reason::kPausedByUser;
  } else if (number % 2 == 0) {
    job.spec.train.global_batch = job.spec.resources.ranks = kTooManyRanks;
  } else {
    job.spec.scheduling.after = {kWaitingPrefix + std::to_string(0)};
  }
  coordinator::Transaction change;
  change.client_request_id = job.id;
  change.events.push_back({job.id, 0, job.submitted_at, "submitted", job.id});
  change.job = std::move(job);
  return change;
}

}  // namespace

Status AddWaitingJobs(const std::string& data_dir, int64_t count) {
  if (count == 0) return OkStatus();
  coordinator::SqliteOptions options;
  options.path = JoinPath(data_dir, "weft.db");
  options.max_batch = kBatch;
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<coordinator::SqliteStore> store,
                        coordinator::SqliteStore::Open(std::move(options)));
  // Answers come in the order of the changes, on one thread.
  Status failed;
  for (int64_t number = 0; number < count; ++number) {
    store->Commit(WaitingJob(data_dir, number),
                  [&failed](const Result<coordinator::CommitResult>& result) {
                    if (!result.ok()) failed = result.status();
                  });
  }
  const Result<coordinator::CommitResult> last =
      coordinator::CommitAndWait(*store, WaitingJob(data_dir, count));
  return failed.ok() ? last.status() : failed;
}

}  // namespace weft::testing
