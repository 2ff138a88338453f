// Whether jobs may be put on workers: cordons, drains and quarantines, which outlive both sides.
#include "common/log.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {

Status Service::LoadWorkerScheduling() {
  WEFT_ASSIGN_OR_RETURN(std::vector<WorkerSchedulingRecord> records, store_.ListWorkerScheduling());
  std::lock_guard lock(view_mutex_);
  for (WorkerSchedulingRecord& record : records) {
    metrics_.SetQuarantined(record.worker_id, record.scheduling == WorkerScheduling::kQuarantined);
    worker_scheduling_[record.worker_id] = std::move(record);
  }
  return OkStatus();
}

WorkerScheduling Service::SchedulingOf(const std::string& worker_id) const {
  const auto found = worker_scheduling_.find(worker_id);
  return found == worker_scheduling_.end() ? WorkerScheduling::kSchedulable
                                           : found->second.scheduling;
}

std::string Service::WhyNoWorker() const {
  bool unused = false;
  for (const auto& [id, session] : sessions_) {
    if (!session.link || session.lost || session.draining || !leases_.IsValid(id)) continue;
    if (SchedulingOf(id) == WorkerScheduling::kSchedulable) return "";
    unused = true;
  }
  return unused ? "no attached worker takes jobs: each is cordoned, drains or is quarantined; "
                  "hint: weft worker list, weft worker uncordon"
                : "";
}

bool Service::MustLeave(const std::string& worker_id) const {
  const WorkerScheduling scheduling = SchedulingOf(worker_id);
  return scheduling == WorkerScheduling::kDraining || scheduling == WorkerScheduling::kQuarantined;
}

void Service::SetWorkerScheduling(const std::string& worker_id, WorkerScheduling scheduling,
                                  const std::string& why,
                                  std::function<void(Result<WorkerView>)> done,
                                  std::shared_ptr<CallRecord> by) {
  loop_.Post([this, record = WorkerSchedulingRecord{worker_id, scheduling, why},
              done = std::move(done), by = std::move(by)] {
    if (!sessions_.contains(record.worker_id) && !worker_scheduling_.contains(record.worker_id)) {
      done(NotFoundError("there is no worker '" + record.worker_id + "'; hint: weft worker list"));
      return;
    }
    Transaction change;
    change.worker_scheduling = record;
    change.audit = by;
    store_.Commit(std::move(change), [this, record, done](const Result<CommitResult>& result) {
      if (!result.ok()) metrics_.StoreFailed();
      loop_.Post([this, record, done, status = result.status()] {
        if (!status.ok()) {
          done(status.WithContext("store the scheduling of worker " + record.worker_id));
          return;
        }
        WEFT_LOG_INFO << "worker " << record.worker_id << " is " << Name(record.scheduling)
                      << (record.why.empty() ? "" : ": ") << record.why;
        {
          std::lock_guard lock(view_mutex_);
          if (record.scheduling == WorkerScheduling::kSchedulable) {
            worker_scheduling_.erase(record.worker_id);
            if (auto it = sessions_.find(record.worker_id); it != sessions_.end()) {
              it->second.unchecked = true;
            }
          } else {
            worker_scheduling_[record.worker_id] = record;
          }
        }
        metrics_.SetQuarantined(record.worker_id,
                                record.scheduling == WorkerScheduling::kQuarantined);
        if (record.scheduling == WorkerScheduling::kSchedulable) ForgetSuspicion(record.worker_id);
        if (MustLeave(record.worker_id)) DrainJobsOn(record.worker_id);
        ScheduleSoon();
        for (WorkerView& view : Workers()) {
          if (view.profile.worker_id == record.worker_id) return done(std::move(view));
        }
        WorkerView unseen;  // it was forgotten, or has not come back yet
        unseen.profile.worker_id = record.worker_id;
        unseen.state = WorkerState::kLost;
        unseen.scheduling = record.scheduling;
        unseen.scheduling_why = record.why;
        done(std::move(unseen));
      });
    });
  });
}

}  // namespace weft::coordinator
