#include <utility>

#include "common/env.h"
#include "common/failpoint.h"
#include "common/log.h"
#include "coordinator/service/run_folder.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Jobs forgotten in one sweep; those behind them wait for the next.
constexpr int64_t kJobsPerSweep = 1000;

constexpr const char* kByRetention = "retention";

/// kConflict when the job has not ended.
Status CheckEnded(const JobRecord& job) {
  if (IsTerminal(job.state)) return OkStatus();
  return ConflictError("job " + job.id + " is " + std::string(Name(job.state)) +
                       "; only jobs that have ended can be deleted; hint: weft cancel " + job.id);
}

/// The change that forgets the job; kConflict unless it has ended and is of that version.
Result<Transaction> Forget(const JobCase& current, int64_t version, const std::string& text,
                           double now) {
  const JobRecord& job = current.job;
  WEFT_RETURN_IF_ERROR(CheckEnded(job));
  if (job.version != version) {
    return ConflictError("job " + job.id + " was changed meanwhile; hint: try again");
  }
  Transaction change;
  change.delete_job = {job.id, version};
  change.events.push_back({job.id, job.last_epoch, now, "deleted", text});
  return change;
}

}  // namespace

void Service::Delete(const std::string& job_id, bool delete_run_dir,
                     std::function<void(Result<DeletedJob>)> done, std::shared_ptr<CallRecord> by) {
  loop_.Post([this, job_id, delete_run_dir, done = std::move(done), by = std::move(by)] {
    const bool named = by != nullptr && !by->record.who.empty();
    const auto answer = [this, done](const Result<DeletedJob>& deleted) {
      if (!deleted.ok() || deleted->kept_run_dir.empty()) return done(deleted);
      looks_.Post([done, kept = *deleted]() mutable {
        if (!Env::Posix().FileExists(kept.kept_run_dir)) kept.kept_run_dir.clear();
        done(std::move(kept));
      });
    };
    DeleteStored({job_id, named ? "user " + by->record.who : "a user", delete_run_dir, answer, by});
  });
}

void Service::DeleteStored(const Deletion& deletion) {
  Result<JobRecord> job = store_.GetJob(deletion.job_id);
  Status may = job.ok() ? CheckEnded(*job) : job.status();
  if (!may.ok()) {
    deletion.done(may);
    return;
  }
  if (!deletion.delete_run_dir) {
    ForgetJob(deletion, *job, "");
    return;
  }
  looks_.Post([this, deletion, job = *std::move(job)] {
    Status status = Failpoint("coordinator.folder.before_look");
    std::string foreign;
    if (status.ok()) {
      Result<std::string> found = ForeignContent(Env::Posix(), job.run_dir);
      status = found.status().WithContext("look into the run folder of job " + job.id);
      if (found.ok()) foreign = *found;
    }
    if (status.ok() && !foreign.empty() && deletion.by != kByRetention) {
      status = ConflictError("the run folder of job " + job.id + " holds " + foreign +
                             ", which no job writes; hint: move that away, or delete the job and "
                             "keep its folder");
    }
    loop_.Post([this, deletion, job, foreign, status] {
      if (status.ok()) {
        ForgetJob(deletion, job, foreign);
      } else {
        deletion.done(status);
      }
    });
  });
}

void Service::ForgetJob(const Deletion& deletion, const JobRecord& job,
                        const std::string& foreign) {
  const FolderDeletionRecord folder{job.id, job.run_dir};
  const bool removes = deletion.delete_run_dir && foreign.empty();
  std::string text = "by " + deletion.by + "; its run folder " + job.run_dir +
                     (removes           ? " is to be deleted"
                      : foreign.empty() ? " is kept"
                                        : " is kept, because it holds " + foreign);
  Change(
      job.id,
      [this, text, folder, removes, version = job.version,
       call = deletion.call](const JobCase& current) {
        Result<Transaction> change = Forget(current, version, text, clock_.UnixSeconds());
        if (change.ok() && removes) change->add_folder_deletion = folder;
        return Audited(std::move(change), call);
      },
      [this, text, folder, removes, done = deletion.done](const Status& status) {
        if (!status.ok()) {
          done(status);
          return;
        }
        WEFT_LOG_INFO << "job " << folder.job_id << ": deleted " << text;
        metrics_.JobDeleted();
        if (!removes) {
          done(DeletedJob{folder.job_id, folder.run_dir});
          return;
        }
        DeleteFolder(folder, [done, id = folder.job_id](const Status& deleted) {
          if (deleted.ok()) {
            done(DeletedJob{id, ""});
          } else {
            done(deleted.WithContext("job " + id + " is deleted, but not its run folder"));
          }
        });
      },
      false);
}

void Service::DeleteFolder(const FolderDeletionRecord& folder,
                           const std::function<void(const Status&)>& done) {
  deleting_.insert(folder.job_id);
  files_.Post([this, folder, done] {
    Status status = Failpoint("coordinator.folder.before_delete");
    if (status.ok()) {
      status = DeleteRunFolder(Env::Posix(), options_.run_root, folder.run_dir);
    }
    if (!status.ok()) {
      WEFT_LOG_ERROR << "the run folder of job " << folder.job_id << ": " << status.message();
    }
    const bool ends = status.ok() || status.code() == StatusCode::kInvalid;
    if (ends && Failpoint("coordinator.folder.after_delete").ok()) {
      EndFolderDeletion(folder, status);
    } else {
      loop_.Post([this, id = folder.job_id] { deleting_.erase(id); });  // it is tried again
    }
    done(status);
  });
}

void Service::EndFolderDeletion(const FolderDeletionRecord& folder, const Status& status) {
  Transaction end;
  end.end_folder_deletion = folder.job_id;
  end.events.push_back({folder.job_id, 0, clock_.UnixSeconds(), "deleted",
                        "its run folder " + folder.run_dir +
                            (status.ok() ? " is deleted" : " is kept: " + status.message())});
  store_.Commit(std::move(end), [this, id = folder.job_id](const Result<CommitResult>& result) {
    if (!result.ok()) metrics_.StoreFailed();
    loop_.Post([this, id] { deleting_.erase(id); });
  });
}

Status Service::FinishFolderDeletions() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<FolderDeletionRecord> folders,
                        store_.ListFolderDeletions());
  for (const FolderDeletionRecord& folder : folders) {
    if (!deleting_.contains(folder.job_id)) DeleteFolder(folder, [](const Status&) {});
  }
  return OkStatus();
}

Status Service::MayForget(const std::string& worker_id) const {
  auto it = sessions_.find(worker_id);
  if (it == sessions_.end()) {
    return NotFoundError("there is no worker '" + worker_id + "'; hint: weft worker list");
  }
  if (it->second.link) {
    return ConflictError("worker '" + worker_id + "' is attached; hint: stop it first");
  }
  if (forgetting_.contains(worker_id)) {
    return ConflictError("worker '" + worker_id + "' is being forgotten");
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

void Service::ForgetWorker(const std::string& worker_id, std::function<void(Status)> done,
                           std::shared_ptr<CallRecord> by) {
  loop_.Post([this, worker_id, done = std::move(done), by = std::move(by)] {
    if (Status status = MayForget(worker_id); !status.ok()) {
      done(status);
      return;
    }
    forgetting_.insert(worker_id);  // it cannot come back before that is stored
    Transaction change;             // also of what was said of it
    change.worker_scheduling =
        WorkerSchedulingRecord{worker_id, WorkerScheduling::kSchedulable, ""};
    change.audit = by;
    store_.Commit(std::move(change), [this, worker_id, done](const Result<CommitResult>& result) {
      if (!result.ok()) metrics_.StoreFailed();
      loop_.Post([this, worker_id, done, stored = result.status()] {
        forgetting_.erase(worker_id);
        if (!stored.ok()) {
          done(stored.WithContext("forget worker " + worker_id));
          return;
        }
        {
          std::lock_guard lock(view_mutex_);
          worker_scheduling_.erase(worker_id);
        }
        metrics_.SetQuarantined(worker_id, false);
        // A start that was being stored may have put ranks there, unless it was quarantined.
        Status status = MayForget(worker_id);
        if (status.ok()) {
          DropWorker(worker_id);
          WEFT_LOG_INFO << "worker " << worker_id << " is forgotten, as a user asked";
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

Status Service::ForgetJobsThatEnded(double before) {
  if (sweep_left_ > 0) {
    WEFT_LOG_WARNING << sweep_left_ << " jobs of the last sweep are still being forgotten; "
                     << "their run folders may be on a disk that does not answer";
    return OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> ended,
                        store_.ListEndedBefore(before, kJobsPerSweep));
  for (const std::string& id : ended) {
    const auto done = [this, id](const Result<DeletedJob>& deleted) {
      if (!deleted.ok()) {
        WEFT_LOG_WARNING << "job " << id << " is not forgotten: " << deleted.status().message();
      }
      loop_.Post([this] { --sweep_left_; });
    };
    ++sweep_left_;
    DeleteStored({id, kByRetention, options_.retention.run_folders, done, nullptr});
  }
  return OkStatus();
}

void Service::Sweep() {
  ForgetGhosts();
  ForgetOldLinks();
  if (const Status status = FinishFolderDeletions(); !status.ok()) {
    WEFT_LOG_ERROR << "looking for run folders to delete: " << status.message();
  }
  const RetentionRules& rules = options_.retention;
  Transaction trim;
  trim.keep_events = rules.events_per_job;
  if (rules.jobs.count() > 0) {
    const double before = clock_.UnixSeconds() - ToSeconds(rules.jobs);
    trim.forget_deleted_before = before;
    if (const Status status = ForgetJobsThatEnded(before); !status.ok()) {
      WEFT_LOG_ERROR << "looking for old jobs: " << status.message();
      return;
    }
  }
  store_.Commit(std::move(trim), [this](const Result<CommitResult>& result) {
    if (!result.ok()) metrics_.StoreFailed();
  });
}

}  // namespace weft::coordinator
