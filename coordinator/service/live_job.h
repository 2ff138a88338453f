#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/heap_optional.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/phases.h"
#include "common/spec/plan.h"
#include "common/status.h"
#include "coordinator/recovery/hang.h"
#include "coordinator/recovery/job_logic.h"
#include "coordinator/recovery/ledger.h"
#include "coordinator/recovery/straggler.h"
#include "coordinator/scheduler/elastic_resize.h"
#include "coordinator/scheduler/restart.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/trials.h"
#include "coordinator/service/step_timer.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

/// What is known of ranks on a worker beyond what is stored.
struct PlacementTrack {
  std::optional<std::chrono::nanoseconds> listed_at;  ///< Last named by the worker.
  std::chrono::nanoseconds expected_from{0};          ///< Nobody can have named them before.
  PlacementActivity activity;                         ///< As last reported; empty before.
  std::vector<RankPace> paces;                        ///< Likewise.
  double data_wait_seconds = 0;                       ///< Likewise.
};

/// An answer of the planner, and to what.
struct Planned {
  int64_t memory_per_rank_bytes;
  ClusterProfile cluster;
  Result<PlanReport> report;
};

/// Why no worker can run a job, as long as the cluster is the one of that number.
struct Infeasible {
  int64_t cluster = 0;
  std::string why;
};

/// Why no plan is looked for for a job until then, as long as the cluster is the one of that
/// number.
struct PlanningPause {
  int64_t cluster = 0;
  std::string why;
  std::chrono::nanoseconds until{0};
};

/// A job that has not ended, or one being changed.
struct LiveJob {
  JobCase current;
  /// PlannedJobOfPhase of the phase that runs or is next, where that is another than the job.
  std::unique_ptr<const JobSpec> own_phase;
  Progress progress;
  bool busy = false;                                       ///< A change is being committed.
  std::list<std::function<void()>> waiting;                ///< Changes after that one.
  bool in_next_change = false;                             ///< One of them is being begun.
  std::map<std::string, PlacementTrack> placements;        ///< Of the newest attempt, by worker.
  HeapOptional<Plan> reserved;                             ///< Capacity of a start being committed.
  std::optional<std::chrono::nanoseconds> dispatched_at;   ///< Until the first answer.
  std::optional<std::chrono::nanoseconds> interrupted_at;  ///< Until it trains again.
  std::optional<std::chrono::nanoseconds>
      retry_from;  ///< Queued after a failure: not started before.
  Reason interrupted_by = Reason::kNone;
  AttemptHistory history;               ///< Of the attempts that have ended.
  StepTimer steps;                      ///< Of the newest attempt.
  QuietTimes quiet;                     ///< Of all attempts that this coordinator saw.
  std::optional<double> start_seconds;  ///< The longest from dispatch to training.
  HeapOptional<Plan> next_plan;         ///< For which it was stopped.
  HeapOptional<BeforeScaleUp> before;   ///< How it ran before it last grew.
  bool went_back = false;               ///< A growth made it slower.
  bool deleted = false;                 ///< Not stored any more.
  std::vector<TriedPlan> tried;         ///< Of the attempts that have ended.
  /// What was planned last to see whether it should go on by another plan, and for what.
  HeapOptional<Planned> planned;
  /// While its plan is being looked for, or that of the job it waits behind.
  std::optional<std::chrono::nanoseconds> planning_since;
  std::optional<PlanningPause> planning_pause;
  std::optional<Infeasible> infeasible;
  /// What it is expected to take, by the cluster of that number.
  std::optional<std::pair<int64_t, JobSize>> size;
  bool promised = false;  ///< Others were stopped for it since it was queued.
  /// First guess since it was queued; seconds since 1970.
  std::optional<double> predicted_start;
  std::set<std::string> waits_for;  ///< Jobs of scheduling.after that have not succeeded yet.

  /// What is planned. Of a long queue each spec is in memory once.
  const JobSpec& Phase() const { return own_phase ? *own_phase : current.job.spec; }
  void SetPhase() {
    own_phase.reset();
    if (current.job.spec.phases.empty()) return;
    own_phase = std::make_unique<const JobSpec>(PlannedJobOfPhase(current.job.spec, current.phase));
  }
  LedgerAccount account;                                 ///< Of the attempts that have ended.
  Ledger counted;                                        ///< What of its time the metrics have.
  StragglerWatch straggler;                              ///< Of the newest attempt.
  std::chrono::nanoseconds straggler_from{0};            ///< Not looked for before.
  std::optional<std::chrono::nanoseconds> peer_left_at;  ///< A rank last left the attempt.
  std::set<std::string> joins_on;  ///< Workers of ranks that join, as soon as that is stored.
  /// Since then all its ranks wait to come together anew.
  std::optional<std::chrono::nanoseconds> peers_wait_from;
};

}  // namespace weft::coordinator
