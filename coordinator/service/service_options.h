#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/queue_spec.h"
#include "coordinator/recovery/hang.h"
#include "coordinator/recovery/retry_delay.h"
#include "coordinator/recovery/straggler.h"
#include "coordinator/recovery/suspicion.h"
#include "coordinator/scheduler/elastic_resize.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/service/plan_memory.h"
#include "coordinator/service/retention.h"

namespace weft::coordinator {

/// When workers check their machines before they get ranks.
struct HealthRules {
  /// A check takes no longer; 0: machines are never checked.
  std::chrono::nanoseconds limit = std::chrono::seconds(20);
  /// A worker that did not answer is asked again after this.
  std::chrono::nanoseconds retry = std::chrono::seconds(30);
};

/// What follows when a rank holds up the others.
enum class StragglerAction {
  kReport,  ///< It is reported.
  kMove,    ///< And the job goes on on other machines, where there are some.
};

struct ServiceOptions {
  std::string run_root;                 ///< run_dir of a job is run_root/ID.
  std::vector<std::string> data_roots;  ///< Files of jobs must be below one; empty: anywhere.
  std::chrono::nanoseconds lease = std::chrono::seconds(10);
  std::chrono::nanoseconds heartbeat = std::chrono::seconds(2);
  ScaleUpRules scale_up;
  RetryRules retry;
  HangRules hang;
  SchedulerRules scheduler;      ///< Its rules of scaling up are those above.
  std::string decisions_folder;  ///< As in DecisionLog, as the next one.
  int64_t decisions_bytes = 0;
  QueuesSpec queues;  ///< Valid by ValidateQueues.
  StragglerRules straggler;
  StragglerAction straggler_action = StragglerAction::kReport;
  HealthRules health;
  SuspicionRules suspicion;
  /// Workers without ranks that only jobs that recover may use, as many as there are at most.
  int64_t spare_workers = 0;
  /// Ranks that are asked to stop are killed after this, or after ten times as long if they show
  /// life.
  std::chrono::nanoseconds stop_limit = std::chrono::seconds(60);
  PlanningRules planning;
  /// Rest between two passes over the queue, as a multiple of the first one's duration; a second at
  /// most.
  int64_t rest_after_pass = 4;
  RetentionRules retention;
  /// The number of other machines to which the network from each is measured; 0: never.
  int64_t links_per_machine = 3;
  /// What could not be measured is tried again after this, then after twice as long each time.
  std::chrono::nanoseconds link_retry = std::chrono::minutes(10);
  /// What was measured this long ago is measured again once both machines are without ranks and no
  /// job waits, after twice as long also while jobs wait; 0: never.
  std::chrono::nanoseconds link_age = std::chrono::hours(24);
  /// Runs nothing by itself: whoever has the service calls RunReady and RunPlanning. The ids of
  /// jobs follow from the seed. For simulations; nullopt: it has threads of its own.
  std::optional<uint64_t> simulation_seed = std::nullopt;

  /// Past the lease, until ranks of a lost worker are surely gone.
  std::chrono::nanoseconds Margin() const { return lease / 5; }
  /// Ranks that an attached worker has reported and does not list any more are lost after this.
  std::chrono::nanoseconds MissingGrace() const { return 3 * heartbeat; }
  /// The same for ranks that the worker was ordered to start and never listed.
  std::chrono::nanoseconds StartGrace() const { return 15 * heartbeat; }
};

}  // namespace weft::coordinator
