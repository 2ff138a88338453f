#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/scheduler/forecast.h"
#include "coordinator/scheduler/job_order.h"
#include "coordinator/scheduler/preemption.h"
#include "coordinator/scheduler/reservation.h"
#include "coordinator/scheduler/scheduler.h"

namespace weft::coordinator {

/// Jobs that one pass looks for a place for among those that run.
inline constexpr int kDisplacing = 16;

/// Bounds of a size that a job leaves to the planner.
struct SizeBounds {
  int64_t max_ranks = 0;                   ///< 0: any number.
  std::optional<int64_t> most_cores = {};  ///< Of a job on CPUs.
};

/// One call of Schedule.
class SchedulingPass {
 public:
  SchedulingPass(const SchedulerSnapshot& snapshot, const PlanFunction& plan);

  SchedulerDecisions Run() &&;

  /// WouldStartNow of scheduler.h.
  std::vector<std::string> WouldStartNow() &&;

 private:
  /// A job that has its turn.
  struct Candidate {
    const RankedJob& ranked;
    const QueuedJob& job;
    JobSpec spec;                            ///< WithDevice.
    bool limited = false;                    ///< The limit of its queue leaves it fewer ranks.
    std::optional<int64_t> most_cores = {};  ///< On CPUs, by that limit or its share.
    /// Bounds without its share and what is promised to others, for where these leave too little.
    SizeBounds beyond_share = {};
  };
  /// What will be free.
  struct Outlook {
    CapacityPool pool;  ///< Soon: with what jobs that stop give back, without what is promised.
    Releases releases;  ///< Later: what jobs that run give back at their end.
  };
  /// All that there is for some jobs, when no other runs.
  struct Whole {
    FreeMap free;
    std::optional<ClusterProfile> part;            ///< For the planner; nullopt: the cluster.
    std::optional<CapacityPool> pool;              ///< Where it was needed.
    std::map<int64_t, ClusterProfile> with_cores;  ///< As much as has that number of cores.
  };
  /// A job with a limited queue, which those after it in that queue do not delay.
  struct LimitHold {
    std::string job_id;
    double until_seconds = 0;  ///< From now, when the limit leaves room for it.
  };

  // pass.cc
  /// `free` with what jobs that stop give back.
  static CapacityPool SoonFree(const CapacityPool& free, const std::vector<ActiveJob>& active);
  void Consider(const RankedJob& ranked);
  /// A job that goes first takes no more than leaves room for the others that do, unless it needs
  /// more.
  void LeaveOthersTheirPromise(Candidate& candidate);
  /// The job has its turn, and nothing is reserved for another.
  void TakeTurn(const Candidate& candidate);
  /// Others go first: the job starts where that delays none of them.
  void Backfill(const Candidate& candidate);
  /// Whether the job waits for a limit of its queue with `amount`; says so.
  bool WaitsForLimit(const RankedJob& ranked, const ComputeAmount& amount);
  /// Has a size that the job leaves to the planner keep within the limit of its queue. False: not
  /// even the least does, and the job waits.
  bool KeepWithinLimit(Candidate& candidate);
  /// The plan for what is free: the last one again, or a new one.
  Result<Plan> Choose(const Candidate& candidate);
  /// What a job waits for: its last plan where the cluster has room for that, else the plan for the
  /// whole cluster.
  Result<Plan> Wanted(const Candidate& candidate);
  /// `plan(spec, most_cores)` within the share of the job or, where that is not enough, with twice
  /// as much, and so on, of the `room` there is.
  template <class Function>
  static Result<Plan> PlanWithinShare(const Candidate& candidate, const ComputeAmount& room,
                                      Function plan);
  /// What is free, with at most `most_cores` cores of it, where there is some.
  ClusterProfile FreeWithCores(std::optional<int64_t> most_cores) const;
  /// The plan for all of `whole`, or for at most `most_cores` cores of it.
  Result<Plan> PlanFor(Whole& whole, const JobSpec& spec, std::optional<int64_t> most_cores);
  /// Whether the job ends earlier by `smaller` now than by waiting for what it wants.
  bool EndsEarlier(const Candidate& candidate, const Plan& smaller);
  /// The job starts, unless the plan takes more than its queue may hold: then it waits.
  void Start(const RankedJob& ranked, Plan plan);
  /// The earliest start of the job with the reservation by `plan`, which displaces those that it
  /// may when all others have ended.
  std::optional<Reservation> ReserveFor(const Plan& plan, const Outlook& outlook) const;
  /// After how long, at the earliest, the job with the reservation may displace a running one and
  /// still may after `then` seconds, when less is left of that; nullopt: it may not. `left`: what
  /// queues hold meanwhile.
  std::optional<double> YieldsIn(const RankedActive& active, double then,
                                 const QueueTree& left) const;
  /// Whether the job with the reservation may displace this one when its time has come.
  bool YieldsToReservation(const RankedJob& ranked, const Plan& plan) const;
  /// Whether the reservation is kept when `plan` holds its place for `seconds`; 0: for how long is
  /// not known.
  bool LeavesReservation(const Plan& plan, double seconds) const;
  /// The reservation by what `outlook` leaves, in another place if it has to be; nullopt: only
  /// later.
  std::optional<Reservation> ReservationBy(const Outlook& outlook) const;
  /// Starts the job by `plan`, which takes what is reserved, where there is another place for that
  /// at the same time. False: there is none.
  bool StartMovingReservation(const RankedJob& ranked, const Plan& plan);
  /// Until the end of the job once it runs by `plan`; 0: not known.
  static double SecondsBy(const RankedJob& ranked, const Plan& plan);
  WaitDecision& Wait(const RankedJob& ranked, Reason reason, std::string message);
  /// The others wait behind this one.
  void HoldBack(const RankedJob& ranked, bool by_planning);
  void WaitBehind(const RankedJob& ranked);
  void SetStart(WaitDecision& wait, std::optional<double> seconds) const;
  void WaitForPlan(const RankedJob& ranked, const Status& status);
  /// WaitForPlan, and holds back others while the plan is being looked for, unless that takes long.
  void AwaitPlan(const RankedJob& ranked, const Status& status);
  void WaitInfeasible(const Candidate& candidate, const Status& status);

  // pass_recovery.cc
  /// Starts those that recover and fit, before any job has had a turn.
  void StartRecovering(JobOrder& order);
  /// Whether the job starts.
  bool Recover(const RankedJob& ranked);
  /// From here on spare workers are not free.
  void LeaveSpares();
  /// All that there is for the job when no other runs: spare workers are for those that recover.
  Whole& WholeFor(const QueuedJob& job);

  // pass_share.cc
  /// What each job that leaves its ranks open should have of the GPUs, or of the cores.
  void ShareAmong(JobOrder& order);
  /// Most GPUs, or cores, of a job by its share; 0: any number.
  static int64_t MostOf(const RankedJob& ranked);
  /// Has a size that the job leaves to the planner keep to its share.
  static void KeepToShare(Candidate& candidate);

  // pass_displace.cc
  /// The job has no room: it gets it from jobs that stop, or waits for `wanted`.
  void AwaitRoom(const Candidate& candidate, const Plan& wanted);
  bool TakeFromStopping(const Candidate& candidate, const Plan& wanted);
  bool TakeShare(const Candidate& candidate, const Plan& wanted, double wait_seconds);
  bool TakeByPreempting(const Candidate& candidate, const Plan& wanted, double wait_seconds);
  /// Keeps `plan` for the job, which starts when others have stopped: `outlook` is what they leave,
  /// without the plan. False, and nothing changes: it would delay the job with the reservation.
  bool Promise(const Candidate& candidate, const Plan& plan, Outlook outlook);
  /// What would start the job now, for people.
  std::vector<std::string> Advise(const Candidate& candidate, const Plan& wanted) const;
  /// Jobs that run take what is free, up to `shares` times their share. With `before` those that go
  /// before that job: of its queue and kind of device, and of no lower priority.
  void Grow(int64_t shares, const RankedJob* before);
  /// Whether that job does.
  bool GrowOne(const RankedActive& active, int64_t shares, const RankedJob* before);
  /// Has ranks join the job where there is room for one, within `bounds`. False: none does.
  bool JoinPeers(const RankedActive& active, const SizeBounds& bounds);
  /// The larger plan of a job within `bounds`; `others`: what its queue holds without it.
  std::optional<PlanChange> LargerPlan(const RankedActive& active, SizeBounds bounds,
                                       const QueueTree& others) const;

  const SchedulerSnapshot& snapshot_;
  const PlanFunction& plan_;
  const ComputeAmount total_;
  const TurnRules turns_;
  std::set<const QueuedJob*> recovered_;     ///< Started by StartRecovering.
  std::set<const QueuedJob*> planned_last_;  ///< Submitted last, and not planned yet.
  const bool has_devices_;                   ///< Some worker has GPUs.
  ComputeAmount promised_;  ///< Least of jobs that go first and have not had their turn.
  QueueTree holding_;       ///< What jobs hold, with those that stop and what they go on with.
  QueueTree held_;          ///< Without them, with those that take their place.
  CapacityPool free_;       ///< Now, without what is promised.
  Outlook outlook_;
  std::vector<RankedActive> active_;     ///< Those that run on, by SortByLoss.
  std::deque<Plan> plans_;               ///< Of jobs that start, for outlook_.releases.
  std::optional<ClusterProfile> part_;   ///< What is free, for the planner; until it changes.
  std::optional<Whole> whole_;           ///< For jobs that recover; without spares, for all.
  std::optional<Whole> without_spares_;  ///< For others.
  std::optional<Reservation> reservation_;
  Turn reserved_turn_;                  ///< Of the job that has it.
  std::string held_back_by_;            ///< The first job that waits.
  std::string behind_;                  ///< What those behind it say.
  bool held_by_planning_ = false;       ///< Only until that job's plan is known.
  std::map<size_t, LimitHold> limits_;  ///< By queue that has the limit.
  std::optional<Forecast> forecast_;
  int planned_ahead_ = 0, plans_for_free_ = 0, tried_backfills_ = 0, displacing_ = 0, moving_ = 0,
      shrinking_ = 0, growing_ = 0;
  SchedulerDecisions decisions_;
};

}  // namespace weft::coordinator
