#include <algorithm>

#include "common/env.h"
#include "common/log.h"
#include "coordinator/service/run_folder.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Jobs forgotten in one sweep; those behind them wait for the next.
constexpr int64_t kJobsPerSweep = 1000;

constexpr const char* kByRetention = "retention";

/// The change that forgets the job; kConflict when it has not ended.
Result<Transaction> Forget(const JobCase& current, const std::string& text, double now) {
  const JobRecord& job = current.job;
  if (!IsTerminal(job.state)) {
    return ConflictError("job " + job.id + " is " + std::string(Name(job.state)) +
                         "; only jobs that have ended can be deleted; hint: weft cancel " + job.id);
  }
  Transaction change;
  change.delete_job = {job.id, job.version};
  change.events.push_back({job.id, job.last_epoch, now, "deleted", text});
  return change;
}

}  // namespace

void Service::Delete(const std::string& job_id, bool delete_run_dir,
                     std::function<void(Result<DeletedJob>)> done, std::shared_ptr<CallRecord> by) {
  loop_.Post([this, job_id, delete_run_dir, done = std::move(done), by = std::move(by)] {
    const bool named = by != nullptr && !by->record.who.empty();
    DeleteStored(job_id, named ? "user " + by->record.who : "a user", delete_run_dir, done, by);
  });
}

void Service::DeleteStored(const std::string& job_id, const std::string& by, bool delete_run_dir,
                           std::function<void(Result<DeletedJob>)> done,
                           const std::shared_ptr<CallRecord>& call) {
  Result<LiveJob*> live = Load(job_id);
  if (!live.ok()) {
    done(live.status());
    return;
  }
  if (const std::string after = JobAfter(job_id); !after.empty()) {
    done(ConflictError("job " + job_id + " cannot be deleted while job " + after +
                       ", which comes after it, has not ended"));
    NextChange(job_id);
    return;
  }
  const std::string run_dir = (*live)->current.job.run_dir;
  std::string foreign;
  if (delete_run_dir) {
    Result<std::string> found = ForeignContent(Env::Posix(), run_dir);
    if (!found.ok()) {
      done(found.status().WithContext("look into the run folder of job " + job_id));
      NextChange(job_id);
      return;
    }
    foreign = *found;
  }
  if (!foreign.empty() && by != kByRetention) {
    done(
        ConflictError("the run folder of job " + job_id + " holds " + foreign +
                      ", which no job writes; hint: move that away, or delete the job and keep its "
                      "folder"));
    NextChange(job_id);
    return;
  }
  const bool removes = delete_run_dir && foreign.empty();
  std::string text = "by " + by + "; its run folder " + run_dir +
                     (removes           ? " is deleted"
                      : foreign.empty() ? " is kept"
                                        : " is kept, because it holds " + foreign);
  Change(
      job_id,
      [this, text, call](const JobCase& current) {
        return Audited(Forget(current, text, clock_.UnixSeconds()), call);
      },
      [this, job_id, run_dir, text, removes, done](const Status& status) {
        if (!status.ok()) {
          done(status);
          return;
        }
        WEFT_LOG_INFO << "job " << job_id << ": deleted " << text;
        metrics_.JobDeleted();
        if (!removes) {
          done(DeletedJob{job_id, Env::Posix().FileExists(run_dir) ? run_dir : ""});
          return;
        }
        files_.Post([this, job_id, run_dir, done] {
          Status deleted = DeleteRunFolder(Env::Posix(), options_.run_root, run_dir);
          if (!deleted.ok()) {
            WEFT_LOG_ERROR << "the run folder of job " << job_id << ": " << deleted.message();
            done(deleted.WithContext("job " + job_id + " is deleted, but not its run folder"));
          } else {
            done(DeletedJob{job_id, ""});
          }
        });
      },
      false);
}

Status Service::MayForget(const std::string& worker_id) const {
  auto it = sessions_.find(worker_id);
  if (it == sessions_.end()) {
    return NotFoundError("there is no worker '" + worker_id + "'; hint: weft worker list");
  }
  if (it->second.link) {
    return ConflictError("worker '" + worker_id + "' is attached; hint: stop it first");
  }
  if (leases_.IsValid(worker_id)) {
    return ConflictError(
        "worker '" + worker_id + "' may come back, its lease has not run out; hint: try again in " +
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options_.lease).count() +
                       1) +
        " seconds");
  }
  if (!JobsOn(worker_id).empty()) {
    return ConflictError("worker '" + worker_id + "' has ranks of job " + JobsOn(worker_id)[0] +
                         "; hint: wait until they are given up");
  }
  return OkStatus();
}

void Service::DropWorker(const std::string& worker_id) {
  ForgetSuspicion(worker_id);
  std::lock_guard lock(view_mutex_);
  UncountWorker(sessions_.at(worker_id));
  sessions_.erase(worker_id);
  placed_.erase(worker_id);
  leases_.Forget(worker_id);
}

void Service::ForgetWorker(const std::string& worker_id, std::function<void(Status)> done) {
  loop_.Post([this, worker_id, done = std::move(done)] {
    if (Status status = MayForget(worker_id); !status.ok()) {
      done(status);
      return;
    }
    Transaction change;  // also of what was said of it
    change.worker_scheduling =
        WorkerSchedulingRecord{worker_id, WorkerScheduling::kSchedulable, ""};
    store_.Commit(std::move(change), [this, worker_id, done](const Result<CommitResult>& result) {
      loop_.Post([this, worker_id, done, stored = result.status()] {
        // It may have come back meanwhile.
        Status status = stored.ok() ? MayForget(worker_id) : stored;
        if (status.ok()) {
          DropWorker(worker_id);
          WEFT_LOG_INFO << "worker " << worker_id << " is forgotten, as a user asked";
        }
        if (stored.ok()) {
          std::lock_guard lock(view_mutex_);
          worker_scheduling_.erase(worker_id);
          metrics_.SetQuarantined(worker_id, false);
        }
        done(status);
      });
    });
  });
}

void Service::ForgetGhosts() {
  const RetentionRules& rules = options_.retention;
  if (rules.lost_workers.count() == 0) return;
  std::vector<std::string> ghosts;
  for (const auto& [id, session] : sessions_) {
    if (clock_.Monotonic() - session.heard_at < rules.lost_workers || !MayForget(id).ok()) continue;
    ghosts.push_back(id);
  }
  for (const std::string& id : ghosts) {
    DropWorker(id);
    WEFT_LOG_INFO << "worker " << id << " is forgotten: nothing was heard of it for "
                  << rules.lost_workers.count() << " hours";
  }
}

void Service::SweepLater() {
  loop_.PostAfter(options_.retention.sweep_every, [this] {
    Sweep();
    SweepLater();
  });
}

void Service::Sweep() {
  ForgetGhosts();
  ForgetOldLinks();
  const RetentionRules& rules = options_.retention;
  Transaction trim;
  trim.keep_events = rules.events_per_job;
  if (rules.jobs.count() > 0) {
    const double before = clock_.UnixSeconds() - ToSeconds(rules.jobs);
    trim.forget_deleted_before = before;
    Result<std::vector<std::string>> ended = store_.ListEndedBefore(before, kJobsPerSweep);
    if (!ended.ok()) {
      WEFT_LOG_ERROR << "looking for old jobs: " << ended.status().message();
      return;
    }
    for (const std::string& id : *ended) {
      DeleteStored(id, kByRetention, rules.run_folders, [id](const Result<DeletedJob>& deleted) {
        if (!deleted.ok()) {
          WEFT_LOG_WARNING << "job " << id << " is not forgotten: " << deleted.status().message();
        }
      });
    }
  }
  store_.Commit(std::move(trim), [this](const Result<CommitResult>& result) {
    if (!result.ok()) metrics_.StoreFailed();
  });
}

}  // namespace weft::coordinator
