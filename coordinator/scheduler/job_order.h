#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "coordinator/scheduler/elastic_shares.h"
#include "coordinator/scheduler/queue_tree.h"
#include "coordinator/scheduler/scheduler.h"

namespace weft::coordinator {

/// What is left of a job, in the seconds that the whole cluster would take for it: seconds times
/// its part of the GPUs, or of the cores.
double WorkOf(double seconds, const ComputeAmount& amount, const ComputeAmount& total);

/// Remaining seconds of a running job, by what was measured or else by its plan; infinite where
/// neither is known.
double SecondsLeft(const RunningJob& job);

/// What the turn of a job depends on, be it waiting or running.
struct Turn {
  size_t queue = 0;
  int64_t priority = 0;
  ComputeAmount amount;
  double work = 0;  ///< As of WorkOf.
  double at = 0;    ///< Of jobs of one priority the earlier goes first: seconds since 1970.
};

/// A job that waits, with its turn.
struct RankedJob {
  const QueuedJob* job = nullptr;
  Turn turn;
  double seconds = 0;       ///< Until its end once it runs.
  bool known_size = false;  ///< Else it counts as the median of the others.
  bool goes_first = false;  ///< It was stopped to go on by another plan, or others were for it.
  bool on_devices = false;  ///< Where its share is; as far as is known before its plan.
  ComputeShare share = {};
};

/// Computes turns.
class TurnRules {
 public:
  TurnRules(const SchedulerRules& rules, const ComputeAmount& total)
      : age_factor_(rules.age_factor), total_(total) {}

  Turn Of(size_t queue, int64_t priority, const ComputeAmount& amount, double seconds,
          double submitted_at) const;

  /// Turn::at of a job with so much work.
  double At(double work, double submitted_at) const { return submitted_at + age_factor_ * work; }

 private:
  double age_factor_;
  ComputeAmount total_;
};

/// The jobs that wait, in the order of their turns: those that go on by another plan or for which
/// others were stopped, then within the quota of their queue, by priority, by fair share, by age
/// and work. Each that was handed out counts as held by its queue from then on, so that queues
/// alternate.
class JobOrder {
 public:
  /// `held`: with what active jobs hold.
  JobOrder(const SchedulerSnapshot& snapshot, const TurnRules& rules, QueueTree held);

  /// Null: no more.
  const RankedJob* Next();

  /// Calls `visit(RankedJob&)` for each job.
  template <class Visitor>
  void ForEach(Visitor&& visit) {
    for (Leaf& leaf : leaves_) {
      for (RankedJob& job : leaf.jobs) visit(job);
    }
  }

 private:
  struct Leaf {
    std::vector<RankedJob> jobs;
    size_t next = 0;
  };

  bool Before(const RankedJob& a, const RankedJob& b) const;
  /// The queue at or below `queue` whose next job has its turn; size() of the tree: none waits.
  size_t Best(size_t queue) const;
  size_t Better(size_t a, size_t b) const;

  QueueTree held_;
  std::vector<Leaf> leaves_;  ///< By queue.
  std::vector<std::vector<size_t>> below_;
  std::vector<size_t> tops_;
};

}  // namespace weft::coordinator
