// For tests of the life of a job.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/recovery/job_logic.h"

namespace weft::coordinator {

/// A plan of one rank on each of these.
inline Plan OnWorkers(std::vector<std::string> workers) {
  Plan plan;
  plan.rank_workers = std::move(workers);
  return plan;
}

/// Applies changes to a case as the service does after the commit.
class Life {
 public:
  explicit Life(int64_t max_attempts = 3) {
    current.job.id = "job";
    current.job.spec.retry.max_attempts = max_attempts;
  }

  void Take(Result<Transaction> change) {
    ASSERT_TRUE(change.ok()) << change.status().message();
    last = *change;
    if (change->attempt) {
      if (current.attempt && current.attempt->epoch != change->attempt->epoch) {
        current.previous_reason = current.attempt->reason;
        Count(*current.attempt, current.job.retried_from, current.tally);
        current.failures =
            FailuresInARow(current.failures, *current.attempt, current.job.progress.checkpoint_step,
                           current.job.retried_from);
      }
      current.attempt = change->attempt;
      if (current.attempt->reason == Reason::kCompleted) current.failures = 0;
    }
    if (change->job) {
      if (change->job->retried_from != current.job.retried_from) current.tally = {};
      current.job = *change->job;
    }
  }
  void Dispatch(std::vector<std::string> workers) {
    Take(DispatchAttempt(current, OnWorkers(std::move(workers)), 1));
  }
  void Report(const std::string& worker, PlacementEvent event, Reason reason = Reason::kNone,
              const std::string& message = "") {
    PlacementReport report;
    report.worker_id = worker;
    report.epoch = current.job.last_epoch;
    report.event = event;
    report.reason = reason;
    report.message = message;
    Take(ApplyReport(current, report, 2));
  }
  /// An attempt that trains `steps` on two workers, saves the last one, and loses a worker.
  void LoseAMachine(int64_t steps) {
    Dispatch({"a", "b"});
    Report("a", PlacementEvent::kTraining);
    int64_t& saved = current.job.progress.checkpoint_step.emplace(
        current.job.progress.checkpoint_step.value_or(0));
    current.attempt->first_step = saved + 1;
    saved += steps;
    Take(InterruptAttempt(current, current.job.last_epoch, Reason::kWorkerLost, "b is lost", 2));
    Report("a", PlacementEvent::kStopped);
    Report("b", PlacementEvent::kLost);
  }
  JobState state() const { return current.job.state; }

  JobCase current;
  Transaction last;
};

}  // namespace weft::coordinator
