#pragma once

#include <cstdint>
#include <span>

#include "coordinator/store/records.h"

namespace weft::coordinator {

/// Where the wall time of a job went since it was submitted, in seconds; mirrors weft.v1.Ledger
/// field by field. The classes sum to that time.
struct Ledger {
  double queued_seconds = 0;
  double starting_seconds = 0;
  double useful_seconds = 0;
  double rework_seconds = 0;
  double checkpoint_seconds = 0;
  double recovery_seconds = 0;
  double data_wait_seconds = 0;
  double straggler_seconds = 0;

  double Total() const {
    return queued_seconds + starting_seconds + useful_seconds + rework_seconds +
           checkpoint_seconds + recovery_seconds + data_wait_seconds + straggler_seconds;
  }
};

/// What a worker reports of the steps of an attempt, and when.
struct StepSighting {
  double at = 0;  ///< Seconds since 1970 UTC.
  int64_t step = 0;
  double step_seconds = 0;  ///< Of that step.
  int64_t skipped_steps = 0;
  double checkpoint_seconds = 0;  ///< Of the attempt so far, as is evaluation_seconds.
  double evaluation_seconds = 0;
  double data_wait_seconds = 0;  ///< Of the attempt so far, of the rank that waited longest.
  double excess_seconds = 0;     ///< By which a straggler makes each step longer; 0: there is none.
};

/// Takes what is new of the steps of an attempt into its times. Steps between two sightings are
/// taken to be as long as each other.
void SeeStep(const StepSighting& seen, AttemptRecord& attempt);

/// The times of an attempt that is dispatched after `last` (null: the first one), to resume from
/// what `progress` says is saved.
AttemptTimes TimesOfNext(const AttemptRecord* last, const Progress& progress);

/// Adds the time from dispatch to the end of the attempt, or until `until` while it runs. After a
/// failure all that follows the newest step is recovery, so the time until it was noticed is,
/// too.
void AddAttempt(const AttemptRecord& attempt, double until, Ledger& ledger);

/// The ledger of a job that goes on: what attempts that have ended took, and from when on it waits.
class LedgerAccount {
 public:
  LedgerAccount() = default;
  explicit LedgerAccount(double submitted_at) : waits_from_(submitted_at) {}

  /// The next attempt has ended.
  void Close(const AttemptRecord& attempt);
  /// Until that time; `running`: the attempt that has not ended, or null.
  Ledger Until(const AttemptRecord* running, double until) const;

 private:
  Ledger ended_;
  double waits_from_ = 0;
};

/// Accounts for a job and all its attempts, oldest first, until `now` or its end.
Ledger LedgerOf(const JobRecord& job, std::span<const AttemptRecord> attempts, double now);

}  // namespace weft::coordinator
