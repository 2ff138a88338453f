#include <algorithm>
#include <cmath>
#include <utility>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/json.h"
#include "common/log.h"
#include "common/model/technique_cost.h"
#include "common/spec/check_profile.h"
#include "common/spec/phases.h"
#include "common/version.h"
#include "coordinator/recovery/peers.h"
#include "coordinator/service/run_folder.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// Attached or not; each counts in every pass of the scheduler.
constexpr int64_t kMostWorkers = 10000;

/// By WorkerState.
constexpr const char* kWorkerStateNames[kWorkerStates] = {"ready", "disconnected", "lost"};

const PlacementRecord* FindPlacement(const JobCase& current, int64_t epoch,
                                     const std::string& worker_id) {
  if (!current.attempt || current.attempt->epoch != epoch || current.attempt->ended_at) {
    return nullptr;
  }
  for (const PlacementRecord& placement : current.attempt->placements) {
    if (placement.worker_id == worker_id && !IsGone(placement.state)) return &placement;
  }
  return nullptr;
}

/// Whether the report is of ranks that take part in the attempt, and were not to leave it.
bool IsMember(const JobCase& current, const PlacementReport& report) {
  const PlacementRecord* placement = FindPlacement(current, report.epoch, report.worker_id);
  return placement == nullptr || placement->part == PlacementPart::kMember;
}

/// Whose lines the log of a worker has, of an attempt whose ranks come and go.
std::string LogSource(const AttemptRecord& attempt, const std::string& worker_id) {
  for (const PlacementRecord& placement : attempt.placements) {
    if (placement.worker_id != worker_id || placement.ranks.empty()) continue;
    return worker_id + "#" + std::to_string(placement.ranks.front());
  }
  return worker_id;
}

/// Whether ranks of that attempt, the newest one, are or were on the worker.
bool HadRanks(const JobCase& current, int64_t epoch, const std::string& worker_id) {
  if (!current.attempt || current.attempt->epoch != epoch) return false;
  const std::vector<PlacementRecord>& placements = current.attempt->placements;
  return std::any_of(placements.begin(), placements.end(), [&](const PlacementRecord& placement) {
    return placement.worker_id == worker_id;
  });
}

}  // namespace

std::vector<std::string> Service::JobsOn(const std::string& worker_id) const {
  auto it = placed_.find(worker_id);
  if (it == placed_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

void Service::SetPlaced(const AttemptRecord& attempt) {
  std::lock_guard lock(view_mutex_);
  for (const PlacementRecord& placement : attempt.placements) {
    if (IsGone(placement.state)) {
      placed_[placement.worker_id].erase(attempt.job_id);
    } else {
      placed_[placement.worker_id].insert(attempt.job_id);
    }
  }
}

Service::Session* Service::SessionOf(const std::shared_ptr<WorkerLink>& link, const char* method,
                                     std::string* worker_id) {
  auto it = link_workers_.find(link.get());
  if (it == link_workers_.end()) {
    metrics_.Fenced(method);
    return nullptr;
  }
  *worker_id = it->second;
  return &sessions_.at(it->second);
}

void Service::Attach(std::shared_ptr<WorkerLink> link, WorkerHello hello) {
  loop_.Post([this, link = std::move(link), hello = std::move(hello)] {
    const std::string& id = hello.worker_id;
    if (hello.api_level != kApiLevel) {
      link->Refuse("worker " + id + " is of version " + hello.version + " (api level " +
                   std::to_string(hello.api_level) + "), this coordinator is of " + kVersion +
                   " (api level " + std::to_string(kApiLevel) +
                   "); hint: install the same version of Weft on both");
      return;
    }
    if (id.empty() || id.size() > 128 || hello.machine.size() > 128) {
      link->Refuse("worker_id must have 1 to 128 characters, and a machine's name at most 128");
      return;
    }
    if (Status sound = CheckProfile(hello.profile); !sound.ok()) {
      link->Refuse("worker " + id + ": " + sound.message());
      return;
    }
    if (std::ssize(sessions_) >= kMostWorkers && !sessions_.contains(id)) {
      ForgetGhosts();
      if (std::ssize(sessions_) >= kMostWorkers) {
        link->Refuse("this coordinator knows " + std::to_string(sessions_.size()) +
                     " workers and takes no more; hint: weft worker forget those that are lost");
        return;
      }
    }
    Duration now = clock_.Monotonic();
    auto known = sessions_.find(id);
    bool restarted = known != sessions_.end() && !known->second.incarnation.empty() &&
                     known->second.incarnation != hello.incarnation;
    if (known != sessions_.end() && known->second.link) {
      if (restarted && now - known->second.heard_at < options_.MissingGrace()) {
        link->Refuse("another worker is attached as '" + id +
                     "'; hint: give each worker its own --data-dir and --worker-id");
        metrics_.Fenced("attach");
        return;
      }
      known->second.link->Close();
      EndProfilesOf(known->second.link);
      EndLinksOf(known->second.link);
      EndCheckOf(known->second.link);
      link_workers_.erase(known->second.link.get());
    }
    std::unique_lock lock(view_mutex_);
    Session& session = sessions_[id];
    if (session.lost || session.incarnation != hello.incarnation) session.steady_from = now;
    if (session.incarnation != hello.incarnation) session.unchecked = true;
    session.link = link;
    link_workers_[link.get()] = id;
    session.incarnation = hello.incarnation;
    session.version = hello.version;
    session.profile = hello.profile;
    session.profile.worker_id = id;
    session.profile.calibration = {};
    session.machine = hello.machine;
    session.given_network = hello.profile.network_bytes_per_second;
    session.lost = false;
    session.draining = false;
    session.registered_at = session.heard_at = now;
    session.last_heartbeat_at = clock_.UnixSeconds();
    lock.unlock();
    leases_.Renew(id);
    ArmLeaseTimer();
    CountWorker(session);
    JoinLinks(session);

    std::vector<AttemptKey> adopted;
    session.stale_ranks = SeeRunning(id, session, hello.running, &adopted);
    for (const AttemptKey& key : adopted) {
      Transaction event;
      event.events.push_back(
          {key.job_id, key.epoch, clock_.UnixSeconds(), "adopted", "by worker " + id});
      store_.Commit(std::move(event), [](const Result<CommitResult>&) {});
    }
    WEFT_LOG_INFO << "worker " << id << " attached (" << hello.profile.cores << " cores, "
                  << adopted.size() << " running attempts adopted)";
    if (!Failpoint("coordinator.register.before_send").ok()) return;
    link->SendRegistered(ToSeconds(options_.lease), ToSeconds(options_.heartbeat), adopted);
    (void)Failpoint("coordinator.register.after_send");
    FindMissing(id, session, restarted, hello.running);
    std::vector<IntentRecord> intents;
    for (auto it = outbox_.lower_bound({id, "", 0, IntentKind::kStart});
         it != outbox_.end() && it->second.worker_id == id; ++it) {
      intents.push_back(it->second);
    }
    for (const IntentRecord& intent : intents) Deliver(intent);
    ScheduleSoon();
  });
}

void Service::Detach(const std::shared_ptr<WorkerLink>& link) {
  loop_.Post([this, link] {
    EndProfilesOf(link);
    EndLinksOf(link);
    EndCheckOf(link);
    auto it = link_workers_.find(link.get());
    if (it == link_workers_.end()) return;
    WEFT_LOG_INFO << "worker " << it->second << " detached; its lease runs on";
    Session& session = sessions_.at(it->second);
    {
      std::lock_guard lock(view_mutex_);
      session.link.reset();
    }
    link_workers_.erase(it);
    CountWorker(session);
  });
}

/// True when the worker runs ranks that it must not. Those in order are collected in `adopted`.
bool Service::SeeRunning(const std::string& worker_id, Session& session,
                         const std::vector<RunningAttempt>& running,
                         std::vector<AttemptKey>* adopted) {
  bool stale = false;
  for (const RunningAttempt& item : running) {
    auto it = live_.find(item.job_id);
    const PlacementRecord* placement =
        it == live_.end() ? nullptr : FindPlacement(it->second->current, item.epoch, worker_id);
    if (placement == nullptr) {
      metrics_.Fenced(adopted != nullptr ? "attach" : "heartbeat");
      WEFT_LOG_WARNING << "worker " << worker_id << " runs attempt " << item.epoch << " of job "
                       << item.job_id << ", which is over; stopping it";
      session.link->Stop(item.job_id, item.epoch, false);
      stale = true;
      continue;
    }
    LiveJob& live = *it->second;
    live.placements[worker_id].listed_at = clock_.Monotonic();
    live.placements[worker_id].activity = item.activity;
    live.placements[worker_id].paces = item.paces;
    const bool first = HasFirstRank(*live.current.attempt, *placement);
    if (first && !placement->ranks.empty()) SeeTimes(live, item);
    JobState state = live.current.job.state;
    const bool saves = SavesAndStops(*live.current.attempt);
    if (adopted != nullptr && (state != JobState::kRecovering || saves)) {
      adopted->push_back({item.job_id, item.epoch});
    }
    if (placement->state == PlacementState::kDispatched) {
      PlacementReport started{worker_id,     item.epoch, PlacementEvent::kStarted,
                              Reason::kNone, "",         ""};
      Change(
          item.job_id,
          [this, started](const JobCase& current) {
            return ApplyReport(current, started, clock_.UnixSeconds());
          },
          [](const Status&) {}, true);
    }
    SeeProgress(live, item, first);
    SeePeer(live, worker_id, *placement, item);
  }
  return stale;
}

void Service::FindMissing(const std::string& worker_id, Session& session, bool restarted,
                          const std::vector<RunningAttempt>& running) {
  Duration now = clock_.Monotonic();
  for (const std::string& job_id : JobsOn(worker_id)) {
    auto it = live_.find(job_id);
    if (it == live_.end()) continue;
    LiveJob& live = *it->second;
    int64_t epoch = live.current.attempt ? live.current.attempt->epoch : 0;
    const PlacementRecord* placement = FindPlacement(live.current, epoch, worker_id);
    if (placement == nullptr) continue;
    bool listed = std::any_of(running.begin(), running.end(), [&](const RunningAttempt& item) {
      return item.job_id == job_id && item.epoch == epoch;
    });
    if (listed) continue;
    bool never = placement->state == PlacementState::kDispatched;
    const PlacementTrack& track = live.placements[worker_id];
    Duration since = std::max(
        {track.listed_at.value_or(Duration(0)), track.expected_from, session.registered_at});
    Duration grace = never ? options_.StartGrace() : options_.MissingGrace();
    if (restarted && !never) {
      LoseShare(job_id, epoch, worker_id, "the worker was restarted without its ranks",
                Reason::kWorkerLost);
    } else if (now - since > grace) {
      LoseShare(job_id, epoch, worker_id,
                never ? "the ranks were never started" : "the worker has no such ranks any more",
                Reason::kRankDied);
    }
  }
}

void Service::LoseShare(const std::string& job_id, int64_t epoch, const std::string& worker_id,
                        const std::string& why, Reason reason) {
  PlacementReport lost{worker_id, epoch, PlacementEvent::kLost, reason, why, ""};
  Change(
      job_id,
      [this, lost](const JobCase& current) {
        return ApplyReport(current, lost, clock_.UnixSeconds());
      },
      [](const Status&) {}, true);
}

void Service::Heartbeat(const std::shared_ptr<WorkerLink>& link, int64_t sequence,
                        std::vector<RunningAttempt> running, bool draining) {
  loop_.Post([this, link, sequence, running = std::move(running), draining] {
    std::string id;
    Session* session = SessionOf(link, "heartbeat", &id);
    if (session == nullptr) return;
    bool was_lost = session->lost;
    {
      std::lock_guard lock(view_mutex_);
      session->heard_at = clock_.Monotonic();
      session->last_heartbeat_at = clock_.UnixSeconds();
      if (session->lost) session->steady_from = session->heard_at;
      session->lost = false;
    }
    leases_.Renew(id);
    const bool was_draining = std::exchange(session->draining, draining);
    bool was_stale = session->stale_ranks;
    session->stale_ranks = SeeRunning(id, *session, running, nullptr);
    if (draining || MustLeave(id)) DrainJobsOn(id);
    for (const RunningAttempt& item : running) {
      CheckHang(item.job_id);
      CheckStraggler(item.job_id);
    }
    FindMissing(id, *session, false, running);
    link->AckHeartbeat(sequence);  // what it reported can be seen now
    if (was_lost) CountWorker(*session);
    if (was_lost || was_stale || (was_draining && !draining)) ScheduleSoon();
  });
}

void Service::BreakDevices(const std::shared_ptr<WorkerLink>& link,
                           std::map<int64_t, std::string> broken) {
  loop_.Post([this, link, broken = std::move(broken)] {
    std::string id;
    Session* session = SessionOf(link, "heartbeat", &id);
    if (session == nullptr) return;
    std::lock_guard lock(view_mutex_);
    for (DeviceSpec& device : session->profile.devices) {
      auto it = broken.find(device.index);
      if (it == broken.end() || !device.unusable.empty()) continue;
      device.unusable = it->second;
      WEFT_LOG_WARNING << "GPU " << device.index << " of worker " << id
                       << " is out of use: " << it->second;
    }
  });
}

void Service::Report(const std::shared_ptr<WorkerLink>& link, const std::string& job_id,
                     PlacementReport report) {
  loop_.Post([this, link, job_id, report = std::move(report)]() mutable {
    Session* session = SessionOf(link, "report", &report.worker_id);
    if (session == nullptr) return;
    if (Status fail = Failpoint("coordinator.attempt.report.before_commit"); !fail.ok()) return;
    const PlacementEvent said = report.event;
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
      auto done = [link, job_id, epoch = told.epoch, said](const Status& status) {
        if (!status.ok() && status.code() != StatusCode::kNotFound) return;
        if (!Failpoint("coordinator.attempt.report.after_commit").ok()) return;
        link->AckReport(job_id, epoch, said);
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
  const PlacementRecord* placement = FindPlacement(live.current, report.epoch, report.worker_id);
  // Only the worker of rank 0 has the numbers of the whole job. It reports them and the
  // checkpoint with which every training ends, before it reports the end.
  if (placement == nullptr || placement->ranks.empty() ||
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
    if (SessionOf(link, "logs", &logs.worker_id) == nullptr) return;
    auto it = live_.find(logs.job_id);
    Result<JobRecord> job =
        it != live_.end() ? Result<JobRecord>(it->second->current.job) : store_.GetJob(logs.job_id);
    int64_t last = logs.first_position + std::ssize(logs.lines) - 1;
    if (!job.ok() || job->last_epoch != logs.epoch) {
      metrics_.Fenced("logs");
      link->AckLogs(logs.job_id, logs.epoch, last);  // the worker may forget them
      return;
    }
    std::string job_id = logs.job_id;
    int64_t epoch = logs.epoch;
    int64_t lines = std::ssize(logs.lines);
    // Ranks that come to a worker again begin a log of their own.
    if (it != live_.end() && it->second->current.attempt &&
        it->second->current.attempt->membership > 0) {
      logs.worker_id = LogSource(*it->second->current.attempt, logs.worker_id);
    }
    Transaction change;
    change.logs = std::move(logs);
    store_.Commit(std::move(change),
                  [this, link, job_id, epoch, lines](Result<CommitResult> result) {
                    if (!result.ok()) {
                      metrics_.StoreFailed();
                      return;  // not acknowledged: the worker sends them again
                    }
                    metrics_.LogLines(lines);
                    link->AckLogs(job_id, epoch, result->log_position);
                    log_changes_.Notify(job_id);
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
        !HadRanks(it->second->current, checkpoint.epoch, worker_id)) {
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
    if (!Failpoint("coordinator.checkpoint.before_commit").ok()) return;
    store_.Commit(std::move(change), [this, job_id](const Result<CommitResult>& result) {
      if (!result.ok()) metrics_.StoreFailed();
      if (result.ok()) (void)Failpoint("coordinator.checkpoint.after_commit");
      job_changes_.Notify(job_id);
    });
  });
}

bool Service::IsCurrent(const AttemptKey& attempt, const std::string& worker_id) {
  auto it = live_.find(attempt.job_id);
  return it != live_.end() &&
         FindPlacement(it->second->current, attempt.epoch, worker_id) != nullptr;
}

void Service::StoreSet(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                       const AttemptKey& attempt, const std::string& key, std::string value) {
  loop_.Post([this, link, request_id, attempt, key, value = std::move(value)]() mutable {
    std::string worker_id;
    if (SessionOf(link, "store", &worker_id) == nullptr) return;
    if (!IsCurrent(attempt, worker_id)) {
      metrics_.Fenced("store");
      link->ReplyStore(request_id, AbortedError("the attempt is over"));
      return;
    }
    Status status = rendezvous_.Set(attempt.job_id, attempt.epoch, key, std::move(value));
    link->ReplyStore(request_id, status.ok() ? Result<std::string>("") : status);
  });
}

void Service::StoreGet(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                       const AttemptKey& attempt, const std::string& key, double timeout_seconds) {
  loop_.Post([this, link, request_id, attempt, key, timeout_seconds] {
    std::string worker_id;
    if (SessionOf(link, "store", &worker_id) == nullptr) return;
    if (!IsCurrent(attempt, worker_id)) {
      metrics_.Fenced("store");
      link->ReplyStore(request_id, AbortedError("the attempt is over"));
      return;
    }
    int64_t ticket = rendezvous_.Get(attempt.job_id, attempt.epoch, key,
                                     [link, request_id](const Result<std::string>& value) {
                                       link->ReplyStore(request_id, value);
                                     });
    if (ticket == 0) return;
    double seconds = std::isfinite(timeout_seconds) ? std::clamp(timeout_seconds, 0.0, 3600.0) : 0;
    loop_.PostAfter(FromSeconds(seconds), [this, ticket] { rendezvous_.Expire(ticket); });
  });
}

void Service::ArmLeaseTimer() {
  std::optional<Duration> next = leases_.NextDeadline();
  if (!next || (lease_timer_ && *lease_timer_ <= *next)) return;
  lease_timer_ = *next;
  loop_.PostAfter(std::max(Duration(0), *next - clock_.Monotonic()), [this] { CheckLeases(); });
}

void Service::CheckLeases() {
  lease_timer_.reset();
  for (const LeaseTable::Change& change : leases_.TakeChanges()) {
    const std::string& id = change.worker_id;
    bool expired = change.phase == LeaseTable::Phase::kExpired;
    if (expired) {
      metrics_.LeaseExpired();
      WEFT_LOG_WARNING << "the lease of worker " << id << " ran out";
      std::lock_guard lock(view_mutex_);
      sessions_[id].lost = true;
      CountWorker(sessions_[id]);
    }
    for (const std::string& job_id : JobsOn(id)) {
      auto it = live_.find(job_id);
      if (it == live_.end() || !it->second->current.attempt) continue;
      int64_t epoch = it->second->current.attempt->epoch;
      if (!expired) {
        LoseShare(job_id, epoch, id, "its lease and the margin have passed", Reason::kWorkerLost);
        continue;
      }
      Blame(id, job_id, Reason::kWorkerLost);
      Change(
          job_id,
          [this, epoch, id](const JobCase& current) -> Result<Transaction> {
            // It goes on without them once they are known to be gone.
            if (MaySpare(current, epoch, id)) return Transaction{};
            return InterruptAttempt(current, epoch, Reason::kWorkerLost,
                                    "the lease of worker " + id + " ran out", clock_.UnixSeconds());
          },
          [](const Status&) {}, true);
    }
  }
  ArmLeaseTimer();
}

void Service::CountWorker(Session& session) {
  if (session.counted == session.State()) return;
  UncountWorker(session);
  session.counted = session.State();
  const auto state = static_cast<size_t>(session.State());
  metrics_.SetWorkers(kWorkerStateNames[state], ++worker_counts_[state]);
}

void Service::UncountWorker(Session& session) {
  if (!session.counted) return;
  const auto state = static_cast<size_t>(*session.counted);
  metrics_.SetWorkers(kWorkerStateNames[state], --worker_counts_[state]);
  session.counted.reset();
}

}  // namespace weft::coordinator
