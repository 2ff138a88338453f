#include "coordinator/service/service.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "common/failpoint.h"
#include "common/log.h"
#include "common/spec/phases.h"
#include "common/text.h"
#include "coordinator/scheduler/preemption.h"

namespace weft::coordinator {
namespace {

/// Threads that plan jobs, and as many that plan for calls.
constexpr int kPlanningThreads = 2;
constexpr size_t kMostCallsWaiting = 64;

/// The state to which a change moves its job, in lower case; empty: it stays where it is.
std::string MoveOf(JobState from, const Transaction& change) {
  if (!change.job || change.job->state == from) return "";
  return AsciiLowerCase(Name(change.job->state));
}

Status AtMove(const std::string& to, const char* when) {
  return to.empty() ? OkStatus() : Failpoint("coordinator.to_" + to + "." + when);
}

}  // namespace

Service::Service(Store& store, const Clock& clock, StoppablePlanFunction plan, Metrics& metrics,
                 ServiceOptions options)
    : store_(store),
      clock_(clock),
      plan_(std::move(plan)),
      metrics_(metrics),
      options_(std::move(options)),
      loop_(clock),
      queue_pool_(clock, options_.simulation_seed ? 0 : kPlanningThreads),
      call_pool_(clock, options_.simulation_seed ? 0 : kPlanningThreads, kMostCallsWaiting),
      files_(clock),
      looks_(clock),
      ids_(options_.simulation_seed),
      leases_(clock, options_.lease, options_.Margin()),
      suspicions_(options_.suspicion),
      decision_log_(Env::Posix(), options_.decisions_folder, options_.decisions_bytes),
      plans_(
          clock, queue_pool_,
          [this](const auto& spec, const auto& cluster, const auto& stop) {
            return TimedPlan(spec, cluster, stop);
          },
          options_.planning, [this](auto task) { loop_.Post(std::move(task)); },
          [this](auto delay, auto task) { loop_.PostAfter(delay, std::move(task)); },
          [this](const std::string& owner) { PlansChanged(owner); }),
      queues_(options_.queues),
      links_(options_.links_per_machine, options_.link_retry) {}

Service::~Service() {
  Stop();
}

Status Service::Start() {
  Duration begin = clock_.Monotonic();
  WEFT_RETURN_IF_ERROR(LoadCalibrations());
  WEFT_RETURN_IF_ERROR(LoadPredictionError());
  WEFT_RETURN_IF_ERROR(LoadLinks());
  WEFT_RETURN_IF_ERROR(LoadWorkerScheduling());
  WEFT_RETURN_IF_ERROR(LoadSuspicions());
  // Workers come back with jobs that run: they are known before the first call. Those that wait may
  // be so many that nobody waits for them.
  WEFT_ASSIGN_OR_RETURN(const std::vector<UnfinishedJob> unfinished, store_.ListUnfinished());
  for (const UnfinishedJob& job : unfinished) {
    if (job.state == JobState::kQueued) {
      unloaded_.push_back(job.id);
    } else {
      WEFT_RETURN_IF_ERROR(Load(job.id).status().WithContext("load job " + job.id));
    }
  }
  LoadSome();
  LoadRest();
  WEFT_ASSIGN_OR_RETURN(std::vector<IntentRecord> intents, store_.ListIntents());
  for (IntentRecord& intent : intents) {
    if (intent.graceful) ExpectStop(intent.job_id, intent.epoch);
    outbox_[{intent.worker_id, intent.job_id, intent.epoch, intent.kind}] = std::move(intent);
  }
  // The workers of running attempts have a lease from now on to come back with them.
  for (const auto& [worker_id, jobs] : placed_) {
    sessions_[worker_id].profile.worker_id = worker_id;
    CountWorker(sessions_[worker_id]);
    leases_.Renew(worker_id);
  }
  if (!unfinished.empty()) {
    settling_ = true;
    loop_.PostAfter(options_.heartbeat, [this] {
      settling_ = false;
      ScheduleSoon();
    });
  }
  ArmLeaseTimer();
  LookAtPlansLater();
  CountTimesLater();
  SweepLater();
  metrics_.SetStartupSeconds(ToSeconds(clock_.Monotonic() - begin));
  if (!unfinished.empty()) {
    WEFT_LOG_INFO << unfinished.size() << " unfinished jobs, " << placed_.size()
                  << " workers expected back with running attempts";
  }
  WEFT_RETURN_IF_ERROR(FinishFolderDeletions());
  if (options_.simulation_seed) return OkStatus();
  files_.Start();
  looks_.Start();
  loop_.Start();
  return OkStatus();
}

void Service::CloseLinks() {
  loop_.Post([this] {
    for (auto& [id, session] : sessions_) {
      if (!session.link) continue;
      EndProfilesOf(session.link);
      session.link->Close();
    }
  });
}

void Service::Wake() {
  loop_.Wake();
  queue_pool_.Wake();
  call_pool_.Wake();
}

bool Service::RunReady() {
  bool any = false;
  for (bool more = true; more; any |= more) {
    more = false;
    for (EventLoop* loop : {&loop_, &files_, &looks_}) more |= loop->RunReady();
  }
  return any;
}

bool Service::RunPlanning() {
  return queue_pool_.RunFirst() || call_pool_.RunFirst();
}

std::optional<std::chrono::nanoseconds> Service::NextTimer() {
  std::optional<Duration> next;
  for (EventLoop* loop : {&loop_, &files_, &looks_}) {
    const std::optional<Duration> timer = loop->NextTimer();
    if (timer && (!next || *timer < *next)) next = timer;
  }
  return next;
}

void Service::Stop() {
  call_pool_.Stop();
  queue_pool_.Stop();
  loop_.Stop();
  looks_.Stop();
  files_.Stop();
  // Replies come in order: after this one none of ours is left that refers to this object.
  (void)CommitAndWait(store_, Transaction{});
}

Result<LiveJob*> Service::Load(const std::string& job_id) {
  if (auto it = live_.find(job_id); it != live_.end()) return it->second.get();
  auto live = std::make_unique<LiveJob>();
  WEFT_ASSIGN_OR_RETURN(live->current.job, store_.GetJob(job_id));
  WEFT_ASSIGN_OR_RETURN(std::vector<AttemptRecord> attempts, store_.ListAttempts(job_id));
  live->current.retry = options_.retry;
  live->progress = live->current.job.progress;
  live->current.phase = PhaseAfter(live->current.job.spec, attempts);
  live->SetPhase();
  const std::span<const AttemptRecord> tried = AttemptsAtPhase(attempts);
  if (tried.size() > 1) live->current.previous_reason = tried[tried.size() - 2].reason;
  for (size_t i = 0; i + 1 < attempts.size(); ++i) {
    Count(attempts[i], live->current.job.retried_from, live->current.tally);
  }
  for (const AttemptRecord& attempt : tried) {
    if (attempt.ended_at) live->history.Add(attempt);
    if (attempt.epoch == tried.back().epoch) break;
    live->current.failures =
        FailuresInARow(live->current.failures, attempt, live->progress.checkpoint_step,
                       live->current.job.retried_from);
  }
  if (live->current.job.spec.resources.try_plans > 1) {
    WEFT_ASSIGN_OR_RETURN(live->tried, LoadTried(tried));
  }
  live->account = LedgerAccount(live->current.job.submitted_at);
  for (const AttemptRecord& attempt : attempts) {
    if (attempt.ended_at) live->account.Close(attempt);
  }
  live->counted = LedgerOf(live->current.job, attempts, clock_.UnixSeconds());
  if (!attempts.empty()) {
    live->current.attempt = std::move(attempts.back());
    for (const PlacementRecord& placement : live->current.attempt->placements) {
      if (!IsGone(placement.state))
        live->placements[placement.worker_id].expected_from = clock_.Monotonic();
    }
    SetPlaced(*live->current.attempt);
  }
  const JobState state = live->current.job.state;
  if (!IsTerminal(state)) WEFT_RETURN_IF_ERROR(WaitForJobs(*live));
  if (state == JobState::kQueued) WaitForRetry(*live);
  LiveJob* loaded = Add(std::move(live));
  WatchTime(job_id);
  return loaded;
}

LiveJob* Service::Add(std::unique_ptr<LiveJob> live) {
  LiveJob* added = live.get();
  const JobRecord& job = added->current.job;
  const SchedulingSpec& scheduling = job.spec.scheduling;
  if (job.state == JobState::kQueued) queue_[job.ordinal] = added;
  if (!scheduling.after.empty() || !scheduling.group.empty()) linked_[job.ordinal] = added;
  CountJob(job.queue, job.state, 1);
  live_[job.id] = std::move(live);
  return added;
}

void Service::Change(const std::string& job_id, Decide decide, Done done, bool must) {
  Result<LiveJob*> loaded = Load(job_id);
  if (!loaded.ok()) {
    done(loaded.status());
    return;
  }
  LiveJob& live = **loaded;
  if (live.busy) {
    live.waiting.push_back([this, job_id, decide = std::move(decide), done = std::move(done),
                            must] { Change(job_id, decide, done, must); });
    return;
  }
  live.current.job.progress = live.progress;
  Result<Transaction> change = decide(live.current);
  if (!change.ok() || change->empty()) {
    done(change.status());
    NextChange(job_id);
    return;
  }
  const std::string move = MoveOf(live.current.job.state, *change);
  if (Status fail = AtMove(move, "before_commit"); !fail.ok()) {
    done(fail);
    NextChange(job_id);
    return;
  }
  if (change->job) change->job->progress = live.progress;
  if (change->attempt && change->attempt->epoch == live.current.job.last_epoch) {
    change->attempt->last_step = std::max(change->attempt->last_step, live.progress.step);
  }
  if (change->attempt && change->attempt->ended_at && live.current.attempt &&
      !live.current.attempt->ended_at) {
    change->run = RunOf(live, *change->attempt,
                        change->job ? change->job->summary_json : live.current.job.summary_json);
    change->reliability = ReliabilityOf(*change->attempt);
  }
  live.busy = true;
  Transaction copy = *change;
  store_.Commit(
      std::move(copy), [this, job_id, decide = std::move(decide), done = std::move(done), must,
                        move, change = std::move(*change)](Result<CommitResult> result) {
        if (result.ok()) (void)AtMove(move, "after_commit");
        loop_.Post([this, job_id, decide, done, must, change, result = std::move(result)] {
          LiveJob& job = *live_.at(job_id);
          job.busy = false;
          if (result.ok()) {
            Committed(job_id, change, *result);
            done(OkStatus());
          } else {
            // The store is well then, and refuses this change for what else it has.
            const bool refused = result.status().code() == StatusCode::kConflict;
            if (refused) {
              WEFT_LOG_WARNING << "job " << job_id << ": " << result.status().message();
            } else {
              metrics_.StoreFailed();
              WEFT_LOG_ERROR << "job " << job_id << ": " << result.status().message();
            }
            if (must && !refused) {
              loop_.PostAfter(kStoreRetryDelay,
                              [this, job_id, decide, done] { Change(job_id, decide, done, true); });
            } else {
              done(result.status());
            }
          }
          NextChange(job_id);
          // A pass over the queue leaves out a job that is being changed.
          if (auto it = live_.find(job_id); result.ok() && it != live_.end() && !it->second->busy &&
                                            it->second->current.job.state == JobState::kQueued) {
            ScheduleSoon();
          }
        });
      });
}

void Service::NextChange(const std::string& job_id) {
  auto it = live_.find(job_id);
  // A change that needs no commit comes back here. The next one begins when it has returned: of a
  // few hundred that wait for a slow store, one inside the other, the stack would overflow.
  if (it == live_.end() || std::exchange(it->second->in_next_change, true)) return;
  while (it != live_.end() && !it->second->busy && !it->second->waiting.empty() &&
         !it->second->deleted) {
    const auto next = std::move(it->second->waiting.front());
    it->second->waiting.pop_front();
    next();
    it = live_.find(job_id);
  }
  if (it == live_.end()) return;
  LiveJob& live = *it->second;
  live.in_next_change = false;
  if (live.busy) return;
  // Of a job that was deleted, what still waits finds that there is no such job.
  const std::list<std::function<void()>> waiting = std::move(live.waiting);
  if (live.deleted || IsTerminal(live.current.job.state)) Retire(job_id);
  for (const auto& change : waiting) change();
}

void Service::Retire(const std::string& job_id) {
  const JobRecord& job = live_.at(job_id)->current.job;
  CountJob(job.queue, job.state, -1);
  CountTimes(*live_.at(job_id));
  linked_.erase(job.ordinal);
  live_.erase(job_id);
  plans_.Forget(job_id);
  std::lock_guard lock(view_mutex_);
  overlays_.erase(job_id);
}

void Service::Committed(const std::string& job_id, const Transaction& change,
                        const CommitResult& result) {
  LiveJob& live = *live_.at(job_id);
  const JobState from = live.current.job.state;
  const std::string from_queue = live.current.job.queue;
  const int64_t from_priority = live.current.job.priority;
  if (change.attempt) {
    const AttemptRecord& attempt = *change.attempt;
    if (live.current.attempt && live.current.attempt->epoch != attempt.epoch) {
      live.current.previous_reason = live.current.attempt->reason;
      live.current.failures =
          FailuresInARow(live.current.failures, *live.current.attempt,
                         live.progress.checkpoint_step, live.current.job.retried_from);
      Count(*live.current.attempt, live.current.job.retried_from, live.current.tally);
    }
    if (!live.current.attempt || live.current.attempt->epoch != attempt.epoch) {
      live.placements.clear();
      for (const PlacementRecord& placement : attempt.placements) {
        live.placements[placement.worker_id].expected_from = clock_.Monotonic();
      }
      live.dispatched_at = clock_.Monotonic();
      live.steps = StepTimer();
      live.quiet.NextAttempt();
      live.next_plan.reset();
      live.planned.reset();
    }
    if (attempt.ended_at) {
      live.history.Add(attempt);
      live.account.Close(attempt);
      if (HasFailed(attempt)) metrics_.AttemptFailed(attempt.reason);
      AddTried(attempt, live.steps.MedianSeconds(), live.tried);
      const Plan* instead = AfterFailedTrial(live.current.job.spec, attempt, live.tried);
      if (instead != nullptr) live.next_plan = *instead;
    }
    if (live.current.attempt && live.current.attempt->epoch == attempt.epoch &&
        attempt.membership > 0) {
      PeersChanged(live, *live.current.attempt, change);
    }
    live.current.attempt = attempt;
    ShowTimes(live);
    SetPlaced(attempt);
    if (attempt.ended_at) rendezvous_.Drop(job_id, attempt.epoch);
  }
  if (change.run) CountRun(*change.run);
  if (change.reliability) {
    reliability_.device_seconds += change.reliability->device_seconds;
    reliability_.failures += change.reliability->failures;
  }
  if (change.job) {
    if (change.job->retried_from != live.current.job.retried_from) live.current.tally = {};
    live.current.job = *change.job;
    live.current.job.version = result.job_version;
    live.current.job.ordinal = result.job_ordinal;
    ShowMove(live, from, from_queue);
    if (live.current.job.state != from) {
      WaitForRetry(live);
      WatchTime(job_id);
      // What it comes after may have failed meanwhile.
      if (IsTerminal(from) || from == JobState::kPaused) (void)WaitForJobs(live);
      if (IsTerminal(live.current.job.state)) EndWaits(live.current.job);
    }
    if (change.attempt && change.attempt->reason == Reason::kCompleted) BeginPhase(live);
  }
  const bool removes = !change.remove_intents.empty();
  if (removes) (void)Failpoint("coordinator.intent.before_remove");
  for (const IntentRecord& intent : change.remove_intents) {
    outbox_.erase({intent.worker_id, intent.job_id, intent.epoch, intent.kind});
  }
  if (removes) (void)Failpoint("coordinator.intent.after_remove");
  for (const IntentRecord& intent : change.add_intents) {
    outbox_[{intent.worker_id, intent.job_id, intent.epoch, intent.kind}] = intent;
    Deliver(intent);
  }
  const bool asks = std::any_of(change.add_intents.begin(), change.add_intents.end(),
                                [](const IntentRecord& intent) { return intent.graceful; });
  if (asks) ExpectStop(job_id, live.current.job.last_epoch);
  if (change.delete_job) live.deleted = true;
  const bool moved_queues =
      from_queue != live.current.job.queue || live.current.job.priority != from_priority;
  bool frees = change.attempt &&
               std::any_of(change.attempt->placements.begin(), change.attempt->placements.end(),
                           [](const auto& placement) { return IsGone(placement.state); });
  if (frees || moved_queues || live.current.job.state != from) ScheduleSoon();
  job_changes_.Notify(job_id);
  if (IsTerminal(live.current.job.state)) log_changes_.Notify(job_id);
}

void Service::BeginPhase(LiveJob& live) {
  JobCase& current = live.current;
  current.phase = std::min(current.phase + 1, PhaseCount(current.job.spec) - 1);
  live.SetPhase();
  current.previous_reason.reset();
  current.failures = 0;
  live.history = {};
  live.tried.clear();
  live.next_plan.reset();
  live.before.reset();
  live.went_back = false;
  live.planned.reset();
  live.infeasible.reset();
  live.planning_pause.reset();
}

void Service::ShowMove(LiveJob& live, JobState from, const std::string& from_queue) {
  const JobRecord& job = live.current.job;
  if (job.state != from || job.queue != from_queue) {
    CountJob(from_queue, from, -1);
    CountJob(job.queue, job.state, 1);
  }
  if (job.state == from) return;
  metrics_.JobMoved(from, job.state);
  WEFT_LOG_INFO << "job " << job.id << ": " << Name(from) << " -> " << Name(job.state)
                << (job.message.empty() ? "" : ": ") << job.message;
  if (from == JobState::kRunning) ForgetStraggler(live);
  if (from == JobState::kQueued) queue_.erase(job.ordinal);
  if (job.state == JobState::kQueued) {
    queue_[job.ordinal] = &live;
    live.predicted_start.reset();
    live.promised = false;
  }
  if (job.state == JobState::kStarting) {
    const double now = clock_.UnixSeconds();
    metrics_.QueueWaited(job.queue, std::max(0.0, now - job.queued_at));
    if (live.predicted_start) {
      metrics_.QueueEtaError(job.queue, std::fabs(now - *live.predicted_start));
    }
  }
  const bool waited = from == JobState::kRecovering || from == JobState::kPaused;
  if ((job.state == JobState::kRecovering && job.reason != Reason::kPreempted) ||
      (!waited && job.state == JobState::kQueued && LastOfPhase(live.current) != nullptr)) {
    live.interrupted_at = clock_.Monotonic();
    live.interrupted_by = job.reason;
  }
  if (job.state == JobState::kRunning && live.current.attempt) {
    const double seconds = clock_.UnixSeconds() - live.current.attempt->started_at;
    live.start_seconds = std::max({0.0, seconds, live.start_seconds.value_or(0)});
  }
  if (job.state == JobState::kRecovering && job.reason == Reason::kReplanned) {
    metrics_.JobReplanned();
  }
  if (job.state == JobState::kRecovering && job.reason == Reason::kPreempted) {
    const Plan& plan = live.current.attempt->plan;
    const double lost = LostSeconds(AsActive(job.id, live, plan), options_.scale_up.restart);
    metrics_.JobPreempted(job.queue, OnDevices(plan), lost * static_cast<double>(ComputeOf(plan)));
  }
  if (job.state == JobState::kRunning && live.interrupted_at) {
    metrics_.Recovered(live.interrupted_by, ToSeconds(clock_.Monotonic() - *live.interrupted_at));
    live.interrupted_at.reset();
  }
  if (IsTerminal(job.state)) {
    metrics_.JobFinished(job.queue, job.state, job.reason);
  }
  SetOverlay(job.id, [](Overlay& overlay) {
    overlay.reason = Reason::kNone;
    overlay.message.clear();
    overlay.wait.reset();
  });
}

void Service::CountJob(const std::string& queue, JobState state, int64_t change) {
  int64_t& count = job_counts_[{queue, state}];
  count += change;
  if (!IsTerminal(state)) metrics_.SetLiveJobs(queue, state, count);
}

void Service::SetOverlay(const std::string& job_id, const std::function<void(Overlay&)>& change) {
  std::lock_guard lock(view_mutex_);
  change(overlays_[job_id]);
}

JobView Service::Compose(JobRecord job, std::vector<AttemptRecord> attempts) {
  std::lock_guard lock(view_mutex_);
  auto it = overlays_.find(job.id);
  if (it != overlays_.end() && !IsTerminal(job.state)) {
    if (it->second.progress) job.progress = *it->second.progress;
    if (job.state == JobState::kQueued && it->second.reason != Reason::kNone) {
      job.reason = it->second.reason;
      job.message = it->second.message;
    }
    if (job.state == JobState::kRunning) job.message = it->second.straggler;
    if (!attempts.empty() && attempts.back().epoch == it->second.epoch) {
      attempts.back().times = it->second.times;
    }
  }
  const Ledger ledger = LedgerOf(job, attempts, clock_.UnixSeconds());
  return {std::move(job), std::move(attempts), ledger};
}

}  // namespace weft::coordinator
