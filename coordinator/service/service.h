#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/heap_optional.h"
#include "common/spec/plan_query.h"
#include "coordinator/membership/lease_table.h"
#include "coordinator/planner/calibration/calibration_report.h"
#include "coordinator/planner/report/explanation.h"
#include "coordinator/planner/report/phase_plans.h"
#include "coordinator/recovery/job_logic.h"
#include "coordinator/recovery/straggler.h"
#include "coordinator/recovery/suspicion.h"
#include "coordinator/scheduler/elastic_resize.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/trials.h"
#include "coordinator/service/calls.h"
#include "coordinator/service/decision_log.h"
#include "coordinator/service/event_loop.h"
#include "coordinator/service/job_ids.h"
#include "coordinator/service/live_job.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/network_links.h"
#include "coordinator/service/notifier.h"
#include "coordinator/service/overlay.h"
#include "coordinator/service/plan_memory.h"
#include "coordinator/service/planning_pool.h"
#include "coordinator/service/queue_use.h"
#include "coordinator/service/rendezvous.h"
#include "coordinator/service/service_options.h"
#include "coordinator/service/session.h"
#include "coordinator/service/views.h"
#include "coordinator/service/worker_link.h"
#include "coordinator/store/store.h"

namespace weft::coordinator {

/// The coordinator without its transport: everything users and workers ask for, on one event loop
/// that alone changes jobs (single writer), over a Store that is the truth. What a job's record
/// says was committed before any answer. Public functions are thread-safe unless said
/// otherwise; callbacks run on the loop, on the store's writer thread or on a thread that plans,
/// and must not block. Plans are found on threads of their own (planning_pool.h); nothing else
/// waits for these.
class Service {
 public:
  Service(Store& store, const Clock& clock, StoppablePlanFunction plan, Metrics& metrics,
          ServiceOptions options);
  ~Service();

  /// Loads what has not ended and waits, a lease long, for the workers of running attempts to come
  /// back with them. Once, before anything else.
  Status Start();
  /// Ends the streams of the workers; their ranks go on, and they will dial again.
  void CloseLinks();
  /// Ends the loop. No call may be in progress.
  void Stop();
  /// For tests that moved a ManualClock.
  void Wake();

  // For simulations (ServiceOptions::simulation_seed).
  /// Runs all that its loops have to do now. Whether there was anything.
  bool RunReady();
  /// Finds the plan that is first in line. Whether there was one.
  bool RunPlanning();
  /// When its next timer is due, by the clock; nullopt: it has none.
  std::optional<std::chrono::nanoseconds> NextTimer();

  // For users. Jobs are named by their full ids: a beginning may be that of another job by the time
  // that the call comes to its turn (ResolveId).
  /// `by`, here and below: the call that asks for it, whose record is stored with the change; null:
  /// none.
  void Submit(const JobSpec& spec, const std::string& client_request_id,
              const std::function<void(Result<SubmitResult>)>& done,
              const std::shared_ptr<CallRecord>& by = nullptr);
  void Cancel(const std::string& job_id, std::function<void(Result<JobView>)> done,
              std::shared_ptr<CallRecord> by = nullptr);
  void Retry(const std::string& job_id, std::function<void(Result<JobView>)> done,
             std::shared_ptr<CallRecord> by = nullptr);
  void Pause(const std::string& job_id, std::function<void(Result<JobView>)> done,
             std::shared_ptr<CallRecord> by = nullptr);
  void Resume(const std::string& job_id, std::function<void(Result<JobView>)> done,
              std::shared_ptr<CallRecord> by = nullptr);
  /// Moves it to another queue or priority, where given.
  void Update(const std::string& job_id, const std::optional<std::string>& queue,
              std::optional<int64_t> priority, std::function<void(Result<JobView>)> done,
              std::shared_ptr<CallRecord> by = nullptr);
  /// Why the job is where it is. `done` runs on the loop, or at once for a job that does not wait.
  void Explain(const std::string& job_id, std::function<void(Result<JobExplanation>)> done);
  /// All queues with what their jobs hold; `done` runs on the loop.
  void Queues(std::function<void(std::vector<QueueUse>)> done);
  /// From now on; kInvalid, and nothing changes, unless ValidateQueues holds.
  Status SetQueues(const QueuesSpec& queues);
  /// Forgets a job that has ended: kConflict when it has not, when one that comes after it has not,
  /// or when its run folder is to go and something lies there that no job writes. An event
  /// "deleted" says by whom. `done` runs once the folder is gone, which goes on after a crash.
  void Delete(const std::string& job_id, bool delete_run_dir,
              std::function<void(Result<DeletedJob>)> done,
              std::shared_ptr<CallRecord> by = nullptr);
  /// Forgets a worker; kConflict when it is attached or has ranks, kNotFound when it is unknown.
  void ForgetWorker(const std::string& worker_id, std::function<void(Status)> done,
                    std::shared_ptr<CallRecord> by = nullptr);
  /// Says whether jobs may be put on a worker; of one that must not have any, they save and go on
  /// elsewhere. kNotFound when it is unknown.
  void SetWorkerScheduling(const std::string& worker_id, WorkerScheduling scheduling,
                           const std::string& why, std::function<void(Result<WorkerView>)> done,
                           std::shared_ptr<CallRecord> by = nullptr);
  /// Calls `answer` on the loop: whoever waits for it knows that the loop runs.
  void Ping(std::function<void()> answer) { loop_.Post(std::move(answer)); }
  Result<JobView> Get(const std::string& job_id);
  Result<JobPage> List(const JobQuery& query);
  /// Plans for `cluster`, or for the attached workers. Keeps the `top` best candidates. `done` is
  /// called once, with kExhausted when that takes longer than the budget of a call and kUnavailable
  /// when too many others wait for theirs. What is returned goes to CancelPlanning when nobody
  /// waits for the answer any more; null: it was given.
  std::shared_ptr<PlanTicket> PlanFor(const JobSpec& spec,
                                      const std::optional<ClusterProfile>& cluster, int64_t top,
                                      std::function<void(Result<PlanReport>)> done);
  /// The same with what speaks for and against each plan (planner/report/explain.h).
  std::shared_ptr<PlanTicket> ExplainFor(
      const JobSpec& spec, const std::optional<ClusterProfile>& cluster, const PlanQuery& query,
      std::function<void(Result<planner::PlanExplanation>)> done);
  /// The plans of all phases of a job that has some (planner/report/phase_plans.h).
  std::shared_ptr<PlanTicket> PlanPhasesFor(const JobSpec& spec,
                                            const std::optional<ClusterProfile>& cluster,
                                            const PlanQuery& query,
                                            std::function<void(Result<planner::PhasePlans>)> done);
  /// `done` is called with kAborted soon, unless it was called already.
  void CancelPlanning(const std::shared_ptr<PlanTicket>& ticket);
  /// Fits what the planner assumes of each kind of machine to the runs that are stored, and plans
  /// with what was adopted from then on (planner/calibration/calibrate.h). With `dry_run` nothing
  /// changes; with `reset` the defaults come back instead.
  Result<planner::CalibrationReport> CalibratePlans(
      bool dry_run, bool reset, const std::shared_ptr<CallRecord>& by = nullptr);
  std::vector<WorkerView> Workers();
  /// Oldest first.
  Result<std::vector<EventRecord>> Events(const std::string& job_id);
  Result<std::vector<CheckpointRecord>> Checkpoints(const std::string& job_id);
  /// Has the ranks record 1 to 100 steps. kConflict when the job is not RUNNING, is recorded
  /// already or ends meanwhile; kUnavailable when its worker is out of reach or takes more than an
  /// hour.
  void Profile(const std::string& job_id, int64_t steps,
               std::function<void(Result<JobProfile>)> done);
  /// The full id of the one job whose id begins so.
  Result<std::string> ResolveId(const std::string& id_or_prefix);
  Store& store() { return store_; }
  /// Key: job id, for its state and progress.
  Notifier& job_changes() { return job_changes_; }
  /// Key: job id, for its log.
  Notifier& log_changes() { return log_changes_; }

  // For workers. Calls for one link come in the order of its messages.
  void Attach(std::shared_ptr<WorkerLink> link, WorkerHello hello);
  void Detach(const std::shared_ptr<WorkerLink>& link);
  /// `draining`: the worker ends soon and gets no new attempt.
  void Heartbeat(const std::shared_ptr<WorkerLink>& link, int64_t sequence,
                 std::vector<RunningAttempt> running, bool draining);
  /// GPUs of the worker, by index, on which no rank must start any more, and why.
  void BreakDevices(const std::shared_ptr<WorkerLink>& link, std::map<int64_t, std::string> broken);
  void Report(const std::shared_ptr<WorkerLink>& link, const std::string& job_id,
              PlacementReport report);
  /// Takes lines of ranks of the newest attempt; others are acknowledged, and dropped.
  void AppendLogs(const std::shared_ptr<WorkerLink>& link, LogAppend logs);
  /// Takes checkpoints of ranks of the newest attempt, in the run folder; others do not count.
  /// `resume_step`: where the attempt started from, which retention keeps.
  void ReportCheckpoint(const std::shared_ptr<WorkerLink>& link, CheckpointRecord checkpoint,
                        std::optional<int64_t> resume_step);
  /// Answer to a WorkerLink::Profile.
  void ReportProfile(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                     Result<std::string> report_json);
  /// Answer to a WorkerLink::MeasureLink.
  void ReportLink(const std::shared_ptr<WorkerLink>& link, LinkAnswer answer);
  /// Answer to a WorkerLink::CheckHealth.
  void ReportHealth(const std::shared_ptr<WorkerLink>& link, HealthAnswer answer);
  void StoreSet(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                const AttemptKey& attempt, const std::string& key, std::string value);
  void StoreGet(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                const AttemptKey& attempt, const std::string& key, double timeout_seconds);

 private:
  using Duration = std::chrono::nanoseconds;
  using Decide = std::function<Result<Transaction>(const JobCase&)>;
  using Done = std::function<void(const Status&)>;

  /// What plans use between machines of one kind.
  struct NetworkRate {
    double bytes_per_second = 0;
    double latency_seconds = 0;
  };

  /// A job that is to be forgotten.
  struct Deletion {
    std::string job_id;
    std::string by;  ///< For people.
    bool delete_run_dir = false;
    std::function<void(const Result<DeletedJob>&)> done;
    std::shared_ptr<CallRecord> call;
  };

  using IntentKey = std::tuple<std::string, std::string, int64_t, IntentKind>;

  /// The answer to a submission under a request id that is that of a job.
  void AnswerAgain(const std::string& job_id, const std::string& client_request_id,
                   const JobSpec& spec, const std::function<void(Result<SubmitResult>)>& done);

  // service.cc: jobs and their changes. On the loop.
  Result<LiveJob*> Load(const std::string& job_id);
  /// To live_, and to what else has the job.
  LiveJob* Add(std::unique_ptr<LiveJob> live);
  /// Change of the job that a user named, and its view.
  void ChangeForUser(const std::string& job_id, Decide decide,
                     std::function<void(Result<JobView>)> done, std::shared_ptr<CallRecord> by);
  /// Runs `decide` on the job as it is stored once its earlier changes are done, commits what it
  /// says, shows the effects, calls `done`. A `must` change that the store could not take is tried
  /// again later, and `done` waits.
  void Change(const std::string& job_id, Decide decide, Done done, bool must);
  void Committed(const std::string& job_id, const Transaction& change, const CommitResult& result);
  /// Forgets what attempts at the phase before have taught.
  static void BeginPhase(LiveJob& live);
  void ShowMove(LiveJob& live, JobState from, const std::string& from_queue);
  void NextChange(const std::string& job_id);
  void Retire(const std::string& job_id);
  void CountJob(const std::string& queue, JobState state, int64_t change);
  void SetOverlay(const std::string& job_id, const std::function<void(Overlay&)>& change);
  JobView Compose(JobRecord job, std::vector<AttemptRecord> attempts);

  // service_load.cc: jobs that waited when this coordinator started. On the loop.
  Status LoadQueued(const std::string& job_id);
  /// Loads some of unloaded_: those that can be in a short time.
  void LoadSome();
  /// Loads the rest, a few between other tasks; those that cannot be read again and again.
  void LoadRest();

  // service_retention.cc: what is forgotten. On the loop.
  void DeleteStored(const Deletion& deletion);
  /// The job is as it was when its run folder was found to hold `foreign`, which no job writes.
  void ForgetJob(const Deletion& deletion, const JobRecord& job, const std::string& foreign);
  /// Deletes a folder, as is stored already; `done` runs on the thread of files_.
  void DeleteFolder(const FolderDeletionRecord& folder,
                    const std::function<void(const Status&)>& done);
  void EndFolderDeletion(const FolderDeletionRecord& folder, const Status& status);
  /// Deletes the folders that are stored as to go and that nobody deletes yet.
  Status FinishFolderDeletions();
  /// Forgets jobs that ended before that time, in seconds since 1970.
  Status ForgetJobsThatEnded(double before);
  /// Why the worker is not to be forgotten.
  Status MayForget(const std::string& worker_id) const;
  void DropWorker(const std::string& worker_id);
  void SweepLater();
  void Sweep();
  void ForgetGhosts();

  // service_workers.cc: sessions, and which ranks workers have. On the loop.
  Session* SessionOf(const std::shared_ptr<WorkerLink>& link, const char* method,
                     std::string* worker_id);
  bool SeeRunning(const std::string& worker_id, Session& session,
                  const std::vector<RunningAttempt>& running, std::vector<AttemptKey>* adopted);
  void FindMissing(const std::string& worker_id, Session& session, bool restarted,
                   const std::vector<RunningAttempt>& running);
  void LoseShare(const std::string& job_id, int64_t epoch, const std::string& worker_id,
                 const std::string& why, Reason reason);
  std::vector<std::string> JobsOn(const std::string& worker_id) const;
  void SetPlaced(const AttemptRecord& attempt);

  // service_leases.cc: workers that fall silent. On the loop.
  void CheckLeases();
  void ArmLeaseTimer();
  /// Counts the worker by the state that it has now.
  void CountWorker(Session& session);
  /// It is counted no more.
  void UncountWorker(Session& session);

  // service_reports.cc: what workers report of ranks. On the loop.
  /// Makes a failure of a report that the whole job is done before its last step is known to be.
  void DoubtEnd(const std::string& job_id, PlacementReport& report);
  void StoreLogs(const std::shared_ptr<WorkerLink>& link, LogAppend logs);
  /// They could not be stored. Once they can, the stream is ended, so that the worker attaches
  /// again and sends all lines that were not acknowledged; those that come before are left out.
  void LogsFailed(const std::shared_ptr<WorkerLink>& link, const LogAppend& logs);
  void EndOnceStored(const std::shared_ptr<WorkerLink>& link, const LogAppend& logs);
  /// Tries until a verified one is stored.
  void StoreCheckpoint(const Transaction& change);
  /// What could not be stored is tried again after this time.
  static constexpr std::chrono::seconds kStoreRetryDelay{1};

  // service_rendezvous.cc: where ranks find each other. On the loop.
  /// Ranks of the attempt. 0 if the worker has none of them; when it has joined, it gets that
  /// answer.
  int64_t RanksThatMeet(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                        const AttemptKey& attempt);

  // service_stops.cc: attempts that do not end by themselves, and when to try again. On the loop.
  /// What the placements of its newest attempt do that are not gone.
  std::vector<PlacementActivity> Activities(const LiveJob& live) const;
  /// What is known beforehand of the times of its newest attempt.
  ActivityForecast ForecastOfAttempt(const LiveJob& live) const;
  /// Called now and then: finds out when the loop was held up, as when its process was stopped.
  void NoteAwake();
  /// Takes off silences what was before the ranks could reach this coordinator, whose answers all
  /// but steps may need.
  void ForgiveOutages(std::vector<PlacementActivity>& activities) const;
  void CheckHang(const std::string& job_id);
  void DrainJobsOn(const std::string& worker_id);
  /// The ranks were asked to stop: looks once the limit has passed, for the `round`th time.
  void ExpectStop(const std::string& job_id, int64_t epoch, int round = 1);
  void CheckStop(const std::string& job_id, int64_t epoch, int round);
  void WaitForRetry(LiveJob& live);
  bool MayStart(const LiveJob& live) const;

  // service_waits.cc: what jobs wait for besides machines, and how long they may run. On the loop.
  /// kInvalid when the job names a queue, or jobs before it, that there are not.
  Status CheckScheduling(const JobSpec& spec);
  /// Finds out which of the jobs before it have not succeeded yet; gives it up when one failed. The
  /// error of the store when it cannot read one: then the job waits for that.
  Status WaitForJobs(LiveJob& live);
  /// Tells those that come after it that a job has ended.
  void EndWaits(const JobRecord& ended);
  /// The queued jobs that must not start yet, in the order of submission.
  std::vector<HeldJob> HoldBack() const;
  /// Ends the job when its time is over, or looks again then.
  void WatchTime(const std::string& job_id);
  void GiveUp(const std::string& job_id, Reason reason, const std::string& why);

  // service_queues.cc.
  /// kInvalid unless jobs may be in that queue.
  Status CheckQueue(const std::string& name);
  /// Whether whoever calls may give a job of the queue this priority: admins may, and others up to
  /// what the queue allows.
  Status CheckPriority(const std::string& queue, int64_t priority,
                       const std::shared_ptr<CallRecord>& by);
  /// Adds what the last pass over the queue says of the job.
  void ExplainWait(JobExplanation& explained);
  /// What would start a queued job now, in words; as far as plans are known.
  std::vector<std::string> WaysToStart(const std::string& job_id);
  /// On the loop; also counts them in the metrics.
  std::vector<QueueUse> CountQueues();

  // service_machines.cc: whether jobs may be put on workers.
  Status LoadWorkerScheduling();
  /// Needs the loop or view_mutex_.
  WorkerScheduling SchedulingOf(const std::string& worker_id) const;
  /// Why no job starts although workers are attached, in words; empty: that is not so.
  std::string WhyNoWorker() const;
  /// The ranks of its jobs are to save and go on elsewhere. On the loop.
  bool MustLeave(const std::string& worker_id) const;

  // service_progress.cc: how far jobs are. On the loop.
  /// What a worker says of the steps of the newest attempt; `of_rank_0`: it has that rank.
  void SeeProgress(LiveJob& live, const RunningAttempt& item, bool of_rank_0);
  /// An event of the job says that its training went back by itself; `last_step` is the newest one
  /// that was reported before.
  void NoteRollback(const LiveJob& live, int64_t epoch, int64_t last_step);

  // service_peers.cc: attempts whose ranks come and go. On the loop.
  /// What a worker says of its ranks of such an attempt.
  void SeePeer(LiveJob& live, const std::string& worker_id, const PlacementRecord& placement,
               const RunningAttempt& item);
  /// Has members come together anew when all of them wait for that and none is lost.
  void CheckPeersMeet(LiveJob& live, const RunningAttempt& item);
  void TellMembership(const AttemptRecord& attempt, const std::string& worker_id);
  /// The newest attempt, which was as `before`, has changed.
  void PeersChanged(LiveJob& live, const AttemptRecord& before, const Transaction& change);
  /// Workers on which no rank is to join the job; nullopt: its ranks stay.
  std::optional<std::set<std::string>> NoPeersOn(const LiveJob& live) const;
  void Join(const JoinDecision& join);
  /// Whether the job becomes smaller by ranks that leave.
  bool ShrinkByPeers(const ResizeDecision& resize);

  // service_ledger.cc: where the time of jobs goes. On the loop.
  /// What the worker of rank 0 reports of the steps.
  void SeeTimes(LiveJob& live, const RunningAttempt& item);
  void ShowTimes(const LiveJob& live);
  void CountTimesLater();
  /// Brings the metrics up to what is certain of the time of a job.
  void CountTimes(LiveJob& live);

  // service_stragglers.cc. On the loop.
  void CheckStraggler(const std::string& job_id);
  /// Its attempt runs no more.
  void ForgetStraggler(LiveJob& live);
  void MoveAway(const std::string& job_id, LiveJob& live, const Straggler& straggler);

  // service_health.cc: machines that are checked, suspected and left out. On the loop.
  Status LoadSuspicions();
  /// A failure of the job began on that worker.
  void Blame(const std::string& worker_id, const std::string& job_id, Reason reason);
  void ForgetSuspicion(const std::string& worker_id);
  void ShowSuspicions();
  void StoreSuspicion(const SuspicionRecord& record);
  void Quarantine(const std::string& worker_id, const std::string& why);
  /// The same of one that is suspected too much, unless many are: then it is rather the network.
  void QuarantineSuspect(const std::string& worker_id, const std::string& why);
  /// Has machines that are to be checked, and have nothing else to do, check themselves.
  void CheckMachines();
  void EndCheck(const std::string& worker_id, int64_t request_id,
                const std::optional<HealthAnswer>& answer);
  void EndCheckOf(const std::shared_ptr<WorkerLink>& link);
  void EndCall(Session& session);
  /// Machines that have just joined are about to have passed their checks: jobs that could use
  /// them wait so long.
  bool AwaitsChecks() const;
  /// It is not about to be checked.
  bool MayTakeRanks(const std::string& worker_id, const Session& session) const;
  /// What an attempt that ends adds to the experience with machines.
  static ReliabilityRecord ReliabilityOf(const AttemptRecord& attempt);
  /// The mean for as many devices as the plan uses, by that experience.
  double MeanSecondsBetweenFailures(const Plan& plan) const;

  // service_profile.cc. On the loop.
  Status StartProfile(int64_t steps, ProfileCall call);
  void EndProfile(int64_t request_id, Result<std::string> report_json);
  /// Nothing comes through this link any more.
  void EndProfilesOf(const std::shared_ptr<WorkerLink>& link);

  // service_links.cc: the network between machines. On the loop.
  Status LoadLinks();
  /// A worker has joined on that machine.
  void JoinLinks(Session& session);
  /// Measures between machines that have nothing else to do.
  void MeasureLinks();
  /// Links that were measured before that are measured again; in seconds since 1970, 0: none.
  double OldLinksBefore() const;
  void StartLink(const MachinePair& pair, const Session& listener, const Session& dialler);
  void EndLink(int64_t request_id, const Result<LinkAnswer>& answer);
  /// Nothing comes through this link any more.
  void EndLinksOf(const std::shared_ptr<WorkerLink>& link);
  bool IsMeasured(const std::string& machine) const;
  /// Forgets links of machines that nobody has heard of for long.
  void ForgetOldLinks();
  void ForgetLinksOf(const std::string& machine);
  /// Gives each worker the network rate that its plans use.
  void SetNetworkRates();
  /// The same, but at least half a minute after the last time.
  void SetNetworkRatesSoon();
  /// Sets the rate that was last found for its kind of machine. Needs view_mutex_.
  void SetNetworkRate(Session& session);
  /// The workers of a plan with the cores that its ranks have, and as network the slowest link that
  /// was measured between them. nullopt where that says nothing new: there is
  /// none, it is about the rate of their kind, or a worker was started with a rate.
  std::optional<ClusterProfile> PlaceByItsLinks(const Plan& plan) const;

  // service_schedule.cc: starting attempts. On the loop.
  void ScheduleSoon();
  void RunSchedule();
  void StartQueued();
  /// Starts the job, once its steps are predicted for the place that it got.
  void Dispatch(const StartDecision& start);
  /// Predicts the steps of the plan on the workers of `place`, on the pool, then goes on with
  /// CommitStart; after a moment with the prediction as it is.
  void PredictOn(const StartDecision& start, ClusterProfile place);
  void CommitStart(const StartDecision& start);
  void Preempt(const PreemptDecision& preemption);
  void Resize(const ResizeDecision& resize);
  void Deliver(const IntentRecord& intent);
  /// Takes them apart.
  void ShowWaits(std::vector<WaitDecision>& waits);

  // service_snapshot.cc: what the scheduler sees. On the loop.
  /// Without what `apart` holds, if that is a job.
  SchedulerSnapshot TakeSnapshot(const std::string& apart = "");
  /// The same without jobs that wait or are about to start.
  SchedulerSnapshot TakeActive(const std::string& apart = "");
  /// Adds a job that is about to start.
  void AddReserved(const std::string& job_id, const LiveJob& live,
                   SchedulerSnapshot& snapshot) const;
  /// Whether a queued job may start as far as machines allow it.
  bool HasATurn(const std::string& job_id, const LiveJob& live) const;
  void AddMachines(SchedulerSnapshot& snapshot) const;
  /// Adds the links measured between its machines.
  void AddLinks(SchedulerSnapshot& snapshot) const;
  /// Why no worker of the last snapshot can run it; null: some can, or that is to be found out.
  const Infeasible* InfeasibleNow(const LiveJob& live) const;
  QueuedJob AsQueued(const std::string& job_id, const LiveJob& live) const;
  /// `plan`: what it holds.
  ActiveJob AsActive(const std::string& job_id, const LiveJob& live, const Plan& plan) const;
  /// A recording of its steps is under way.
  bool IsRecorded(const std::string& job_id) const;

  // service_plans.cc: planning away from the loop.
  /// A checked job with the sizes of its model, and the machines that are there where none are
  /// given.
  Result<std::pair<JobSpec, ClusterProfile>> ToPlan(const JobSpec& spec,
                                                    const std::optional<ClusterProfile>& cluster);
  Result<PlanReport> TimedPlan(const JobSpec& spec, const ClusterProfile& cluster,
                               const std::stop_token& stop);
  template <class Answer, class Find>
  std::shared_ptr<PlanTicket> PlanForCall(Find find, std::function<void(Result<Answer>)> done);
  /// Answers of the planner as far as they are known; others are asked for. `owner`: PlanMemory's.
  PlanFunction Known(const std::string& owner);
  /// Does, on the loop, what is to be done once an answer came that `owner` asked for.
  void PlansChanged(const std::string& owner);
  /// Adds to the report of ranks without memory what would fit, then goes on with `commit`. Other
  /// changes of the job wait for so long.
  void AdviseOnMemory(const std::string& job_id, const PlacementReport& report,
                      const std::function<void(const PlacementReport&)>& commit);

  // service_runs.cc: what runs teach the planner.
  /// What came out of an attempt that ends, where something was measured and its machines are
  /// known. On the loop.
  std::optional<RunRecord> RunOf(const LiveJob& live, const AttemptRecord& attempt,
                                 const std::string& summary_json) const;
  void CountRun(const RunRecord& run);
  /// Plans by which the job has run, from what is stored.
  Result<std::vector<TriedPlan>> LoadTried(std::span<const AttemptRecord> attempts);
  Status LoadCalibrations();
  /// How wrong predictions were, by the runs that are stored.
  Status LoadPredictionError();
  void LearnPredictionError(double ratio);
  /// The machine as its worker measured it, with what runs have taught of its kind.
  WorkerProfile Calibrated(WorkerProfile machine) const;

  // service_replan.cc: running jobs that go on by another plan. On the loop.
  void LookAtPlansLater();
  void LookAtPlans();
  /// `plan`: by which it runs, or is about to.
  RunningJob AsRunning(const LiveJob& live, const Plan& plan) const;
  std::optional<PlanChange> NextTrial(const std::string& job_id, LiveJob& live,
                                      const RunningJob& job);
  /// Stops the job at a checkpoint, to go on by that plan; `then` once that is stored.
  void Replan(const std::string& job_id, const PlanChange& better,
              std::function<void(LiveJob&)> then);
  /// Known(job_id), and the last answer as long as its machines stay: of many jobs that run each
  /// has other ones to grow on.
  PlanFunction PlannedBefore(const std::string& job_id, LiveJob& live);
  bool HasAllWorkers(const Plan& plan) const;

  Store& store_;
  const Clock& clock_;
  StoppablePlanFunction plan_;
  Metrics& metrics_;
  ServiceOptions options_;
  Notifier job_changes_;
  Notifier log_changes_;
  EventLoop loop_;
  PlanningPool queue_pool_;  ///< For jobs,
  PlanningPool call_pool_;   ///< and for calls, which so take nothing from each other.
  EventLoop files_;          ///< Deletes folders, which may take minutes,
  EventLoop looks_;          ///< and looks at files, for which the other loop never waits.
  JobIds ids_;

  // On the loop only.
  std::map<std::string, std::unique_ptr<LiveJob>> live_;
  std::map<int64_t, LiveJob*> queue_;   ///< Queued jobs of live_, by order of submission.
  std::map<int64_t, LiveJob*> linked_;  ///< Those that come after others or have a group, likewise.
  std::deque<std::string> unloaded_;    ///< Those of before the start that are not there yet,
  std::deque<std::string> unreadable_;  ///< and those that the store could not read,
  Duration load_retry_ = std::chrono::seconds(1);  ///< which it tries again after this.
  std::map<IntentKey, IntentRecord> outbox_;       ///< As stored.
  /// Jobs that come after a job which has not ended, by its id.
  std::map<std::string, std::set<std::string>> dependents_;
  std::set<std::string> held_;        ///< HoldBack of the last snapshot.
  std::set<std::string> deleting_;    ///< Jobs whose run folders are being deleted.
  int64_t sweep_left_ = 0;            ///< Jobs that the last sweep is still forgetting.
  std::set<std::string> forgetting_;  ///< Workers that are being forgotten.
  LeaseTable leases_;
  Rendezvous rendezvous_;
  std::map<int64_t, ProfileCall> profiles_;  ///< By request id.
  int64_t next_profile_ = 1;
  std::map<int64_t, LinkCall> link_calls_;  ///< By request id.
  int64_t next_link_ = 1;
  int64_t next_check_ = 1;
  int64_t checks_ = 0;                      ///< Machines that are being checked now.
  std::optional<Duration> checking_since_;  ///< Some machine is being checked at all times since.
  SuspicionTable suspicions_;               ///< Written on the loop, with view_mutex_ held.
  ReliabilityRecord reliability_;
  std::map<std::string, NetworkRate> network_rates_;  ///< By kind of machine.
  bool rates_pending_ = false;
  Duration next_rates_{0};  ///< Not before.
  DecisionLog decision_log_;
  std::deque<Plan> held_plans_;  ///< Of the last snapshot, for jobs that are stopping.
  bool schedule_pending_ = false;
  bool settling_ = false;     ///< Just started: workers are still coming back.
  bool queue_waits_ = false;  ///< For workers that others hold, or to be started.
  PlanMemory plans_;
  ClusterProfile scheduled_cluster_;  ///< That of the last pass over the queue,
  int64_t cluster_number_ = 0;        ///< which counts how often it changed.
  Duration next_pass_{0};             ///< Not before.
  /// Mean of |measured - predicted| / measured time of a step, newer runs counting more.
  double prediction_error_ = SchedulerRules().prediction_error;
  std::optional<Duration> lease_timer_;
  Duration looked_at_{0};                                  ///< Last NoteAwake.
  Duration awake_since_{0};                                ///< The loop was not held up since.
  std::map<const WorkerLink*, std::string> link_workers_;  ///< Attached links to worker ids.
  std::map<std::pair<std::string, JobState>, int64_t> job_counts_;  ///< Of live_, by queue.
  int64_t worker_counts_[kWorkerStates] = {};                       ///< Of sessions_, by state.

  std::mutex calibrating_mutex_;                         ///< Held by the one that calibrates.
  mutable std::mutex calibration_mutex_;                 ///< Guards what follows.
  std::map<std::string, TimeCalibration> calibrations_;  ///< By planner::MachineKind; as stored.

  std::mutex view_mutex_;  ///< Guards what follows; written on the loop.
  QueuesSpec queues_;
  std::map<std::string, Session> sessions_;
  /// The records as stored; those that may have jobs are not in it.
  std::map<std::string, WorkerSchedulingRecord> worker_scheduling_;
  NetworkLinks links_;
  std::unordered_map<std::string, Overlay> overlays_;
  std::map<std::string, std::set<std::string>> placed_;  ///< Worker to jobs with ranks there.
};

/// The change with the record of the call that asked for it; nothing where nothing changes.
Result<Transaction> Audited(Result<Transaction> change, const std::shared_ptr<CallRecord>& by);

}  // namespace weft::coordinator
