// What workers report of the ranks of an attempt: how they end, what they log, what they save.
#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/json.h"
#include "common/log.h"
#include "common/model/technique_cost.h"
#include "common/spec/phases.h"
#include "coordinator/recovery/peers.h"
#include "coordinator/service/run_folder.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Jobs of a stream whose places in the log are known, at most.
constexpr size_t kMostLogPlaces = 1000;

/// Whether the report is of ranks that take part in the attempt, and were not to leave it.
bool IsMember(const JobCase& current, const PlacementReport& report) {
  const PlacementRecord* placement = LivingPlacement(current, report.epoch, report.worker_id);
  return placement == nullptr || (placement->part == PlacementPart::kMember &&
                                  AreRanksOf(*current.attempt, *placement, report.first_rank));
}

/// Whether ranks of the attempt `epoch` are or were on the worker, and that one is `newest`.
bool HadRanks(const HeapOptional<AttemptRecord>& newest, int64_t epoch,
              const std::string& worker_id) {
  if (!newest || newest->epoch != epoch) return false;
  const std::vector<PlacementRecord>& placements = newest->placements;
  return std::any_of(placements.begin(), placements.end(), [&](const PlacementRecord& placement) {
    return placement.worker_id == worker_id;
  });
}

/// The newest attempt at a job as it is stored; none without one, or without that job.
Result<HeapOptional<AttemptRecord>> NewestStored(Store& store, const std::string& job_id) {
  WEFT_ASSIGN_OR_RETURN(std::vector<AttemptRecord> attempts, store.ListAttempts(job_id));
  HeapOptional<AttemptRecord> newest;
  if (!attempts.empty()) newest = std::move(attempts.back());
  return newest;
}

}  // namespace

void Service::Report(const std::shared_ptr<WorkerLink>& link, const std::string& job_id,
                     PlacementReport report) {
  loop_.Post([this, link, job_id, report = std::move(report)]() mutable {
    Session* session = SessionOf(link, "report", &report.worker_id);
    if (session == nullptr) return;
    if (Status fail = Failpoint("coordinator.attempt.report.before_commit"); !fail.ok()) return;
    const PlacementReport said = report;
    DoubtEnd(job_id, report);
    if (auto it = live_.find(job_id); it != live_.end() && it->second->dispatched_at) {
      metrics_.Dispatched(ToSeconds(clock_.Monotonic() - *it->second->dispatched_at));
      it->second->dispatched_at.reset();
    }
    if (auto it = live_.find(job_id); it != live_.end() &&
                                      report.event == PlacementEvent::kStopped &&
                                      it->second->current.job.last_epoch == report.epoch &&
                                      IsMember(it->second->current, report) &&
                                      (it->second->current.job.state == JobState::kStarting ||
                                       it->second->current.job.state == JobState::kRunning)) {
      session->draining = true;  // unasked; until the next heartbeat says
    }
    if (auto it = live_.find(job_id);
        it != live_.end() && report.event == PlacementEvent::kFailed &&
        it->second->current.attempt && it->second->current.attempt->epoch == report.epoch) {
      // A rank may also end because it lost a peer. Who computed wrong is known, also when others
      // ended before.
      const bool own = it->second->current.attempt->times.failed_at
                           ? report.reason == Reason::kSilentCorruption
                           : report.reason != Reason::kRankDied || report.signal != 0;
      if (own) Blame(report.worker_id, job_id, report.reason);
    }
    const auto commit = [this, job_id, link, said](const PlacementReport& told) {
      auto decide = [this, job_id, report = told, link](const JobCase& current) {
        bool mine = current.attempt && current.attempt->epoch == report.epoch;
        if (!mine || current.attempt->ended_at) {
          metrics_.Fenced("report");
          bool alive =
              report.event == PlacementEvent::kStarted || report.event == PlacementEvent::kTraining;
          if (alive) link->Stop(job_id, report.epoch, false);
        }
        return ApplyReport(current, report, clock_.UnixSeconds());
      };
      auto done = [link, job_id, said](const Status& status) {
        if (!status.ok() && status.code() != StatusCode::kNotFound) return;
        if (!Failpoint("coordinator.attempt.report.after_commit").ok()) return;
        link->AckReport(job_id, said);
        (void)Failpoint("coordinator.attempt.report.after_ack");
      };
      Change(job_id, decide, done, true);
    };
    if (report.reason == Reason::kOutOfMemory) {
      AdviseOnMemory(job_id, report, commit);
    } else {
      commit(report);
    }
  });
}

void Service::DoubtEnd(const std::string& job_id, PlacementReport& report) {
  const auto it = live_.find(job_id);
  if (report.event != PlacementEvent::kFinished || it == live_.end()) return;
  const LiveJob& live = *it->second;
  const PlacementRecord* placement = LivingPlacement(live.current, report.epoch, report.worker_id);
  // Only the worker of rank 0 has the numbers of the whole job. It reports them and the
  // checkpoint with which every training ends, before it reports the end.
  if (placement == nullptr || placement->ranks.empty() ||
      !AreRanksOf(*live.current.attempt, *placement, report.first_rank) ||
      !HasFirstRank(*live.current.attempt, *placement)) {
    return;
  }
  const JobSpec& job = live.current.job.spec;
  const int64_t last = StepsBefore(job, live.current.phase + 1);
  // A search for a smaller network ends when it has found one.
  const bool may_end_early = TicketOf(live.Phase().model).has_value();
  const int64_t least = may_end_early ? StepsBefore(job, live.current.phase) + 1 : last;
  const int64_t known = std::max(live.progress.step, live.progress.checkpoint_step.value_or(0));
  if (known >= least) return;
  report.event = PlacementEvent::kFailed;
  report.reason = Reason::kRankDied;
  report.message = "its ranks ended as if all was done, but step " + std::to_string(known) +
                   " of " + std::to_string(last) + " was the last one reported";
  report.summary_json.clear();
  WEFT_LOG_WARNING << "job " << job_id << ", attempt " << report.epoch << ", worker "
                   << report.worker_id << ": " << report.message;
  Blame(report.worker_id, job_id, report.reason);
}

void Service::AppendLogs(const std::shared_ptr<WorkerLink>& link, LogAppend logs) {
  loop_.Post([this, link, logs = std::move(logs)]() mutable {
    Session* session = SessionOf(link, "logs", &logs.worker_id);
    // After lines that could not be stored these would leave a gap.
    if (session == nullptr || session->logs_failed) return;
    auto it = live_.find(logs.job_id);
    HeapOptional<AttemptRecord> stored;  // of a job that has ended
    if (it == live_.end()) {
      Result<HeapOptional<AttemptRecord>> read = NewestStored(store_, logs.job_id);
      if (!read.ok()) {
        metrics_.StoreFailed();
        return link->Close();  // who attaches again sends them again
      }
      stored = *std::move(read);
    }
    const HeapOptional<AttemptRecord>& newest =
        it != live_.end() ? it->second->current.attempt : stored;
    int64_t last = logs.first_position + std::ssize(logs.lines) - 1;
    if (!HadRanks(newest, logs.epoch, logs.worker_id)) {
      metrics_.Fenced("logs");
      link->AckLogs(logs, last);  // the worker may forget them
      return;
    }
    // Ranks that come to a worker again begin a log of their own.
    if (newest->membership > 0) logs.worker_id += "#" + std::to_string(logs.first_rank);
    // Of lines under way to the store some may fail, and must not be passed by those after them.
    if (session->log_places.size() > kMostLogPlaces) session->log_places.clear();
    LogPlace& place = session->log_places[logs.job_id];
    logs.follows = place == LogPlace{logs.epoch, logs.worker_id, logs.first_position};
    place = {logs.epoch, logs.worker_id, last + 1};
    StoreLogs(link, std::move(logs));
  });
}

void Service::StoreLogs(const std::shared_ptr<WorkerLink>& link, LogAppend logs) {
  if (!Failpoint("coordinator.logs.before_commit").ok()) return;
  Transaction change;
  change.logs = logs;
  store_.Commit(std::move(change),
                [this, link, logs = std::move(logs)](const Result<CommitResult>& result) {
                  if (!result.ok()) {
                    metrics_.StoreFailed();
                    loop_.Post([this, link, logs] { LogsFailed(link, logs); });
                    return;
                  }
                  metrics_.LogLines(std::ssize(logs.lines));
                  if (!Failpoint("coordinator.logs.after_commit").ok()) return;
                  link->AckLogs(logs, result->log_position);
                  (void)Failpoint("coordinator.logs.after_ack");
                  log_changes_.Notify(logs.job_id);
                });
}

void Service::LogsFailed(const std::shared_ptr<WorkerLink>& link, const LogAppend& logs) {
  const auto it = link_workers_.find(link.get());
  if (it == link_workers_.end()) return;  // who attaches again sends them again
  if (std::exchange(sessions_.at(it->second).logs_failed, true)) return;
  EndOnceStored(link, logs);
}

void Service::EndOnceStored(const std::shared_ptr<WorkerLink>& link, const LogAppend& logs) {
  loop_.PostAfter(kStoreRetryDelay, [this, link, logs] {
    if (!link_workers_.contains(link.get())) return;
    Transaction change;
    change.logs = logs;
    store_.Commit(std::move(change), [this, link, logs](const Result<CommitResult>& result) {
      if (result.ok()) return link->Close();
      loop_.Post([this, link, logs] { EndOnceStored(link, logs); });
    });
  });
}

void Service::ReportCheckpoint(const std::shared_ptr<WorkerLink>& link, CheckpointRecord checkpoint,
                               std::optional<int64_t> resume_step) {
  loop_.Post([this, link, checkpoint = std::move(checkpoint), resume_step]() mutable {
    std::string worker_id;
    if (SessionOf(link, "checkpoint", &worker_id) == nullptr) return;
    auto it = live_.find(checkpoint.job_id);
    if (it == live_.end() || it->second->current.job.last_epoch != checkpoint.epoch ||
        !HadRanks(it->second->current.attempt, checkpoint.epoch, worker_id)) {
      metrics_.Fenced("checkpoint");
      return;
    }
    const std::string& run_dir = it->second->current.job.run_dir;
    if (!IsInRunFolder(checkpoint.path, run_dir)) {
      WEFT_LOG_WARNING << "job " << checkpoint.job_id << ": worker " << worker_id
                       << " reports a checkpoint in " << Quoted(checkpoint.path)
                       << ", which is not in the run folder " << run_dir << "; it does not count";
      return;
    }
    metrics_.CheckpointReported(checkpoint.verified);
    std::string job_id = checkpoint.job_id;
    if (checkpoint.verified) {
      LiveJob& live = *it->second;
      live.progress.checkpoint_step =
          std::max(live.progress.checkpoint_step.value_or(0), checkpoint.step);
      // From a snapshot, which is a checkpoint only now.
      if (live.current.job.state == JobState::kStarting) {
        int64_t& resumes_at = live.current.attempt->times.step;
        // The attempt before this one came further, which ends the row of failures before it.
        int64_t& failures = live.current.failures;
        if (checkpoint.step > resumes_at) failures = std::min<int64_t>(failures, 1);
        resumes_at = std::max(resumes_at, checkpoint.step);
      }
      SetOverlay(job_id, [&](Overlay& overlay) { overlay.progress = live.progress; });
    }
    Transaction change;
    if (checkpoint.verified) {
      const JobCase& current = it->second->current;
      change.retention = {current.job.spec.checkpoint.keep_last, resume_step,
                          StepsBefore(current.job.spec, current.phase)};
    }
    change.checkpoint = std::move(checkpoint);
    StoreCheckpoint(change);
  });
}

void Service::StoreCheckpoint(const Transaction& change) {
  if (!Failpoint("coordinator.checkpoint.before_commit").ok()) return;
  store_.Commit(change, [this, change](const Result<CommitResult>& result) {
    if (result.ok()) {
      (void)Failpoint("coordinator.checkpoint.after_commit");
    } else {
      metrics_.StoreFailed();
      // Its worker does not report it again. One that is not verified may be by now.
      if (change.checkpoint->verified) {
        loop_.PostAfter(kStoreRetryDelay, [this, change] { StoreCheckpoint(change); });
      }
    }
    job_changes_.Notify(change.checkpoint->job_id);
  });
}

}  // namespace weft::coordinator
