#include "coordinator/recovery/ledger.h"

#include <gtest/gtest.h>

#include "coordinator/recovery/job_logic.h"

namespace weft::coordinator {
namespace {

/// Times in these tests are seconds from here.
constexpr double kBegin = 1.7e9;

JobRecord Job() {
  JobRecord job;
  job.id = "job-1";
  job.submitted_at = kBegin;
  return job;
}

AttemptRecord Attempt(int64_t epoch, double started_at) {
  AttemptRecord attempt;
  attempt.job_id = "job-1";
  attempt.epoch = epoch;
  attempt.started_at = kBegin + started_at;
  return attempt;
}

StepSighting At(double seconds, int64_t step, double step_seconds = 1) {
  StepSighting seen;
  seen.at = kBegin + seconds;
  seen.step = step;
  seen.step_seconds = step_seconds;
  return seen;
}

/// queued, starting, useful, rework, checkpoint, recovery.
void Expect(const Ledger& ledger, const std::array<double, 6>& seconds) {
  EXPECT_NEAR(ledger.queued_seconds, seconds[0], 1e-6);
  EXPECT_NEAR(ledger.starting_seconds, seconds[1], 1e-6);
  EXPECT_NEAR(ledger.useful_seconds, seconds[2], 1e-6);
  EXPECT_NEAR(ledger.rework_seconds, seconds[3], 1e-6);
  EXPECT_NEAR(ledger.checkpoint_seconds, seconds[4], 1e-6);
  EXPECT_NEAR(ledger.recovery_seconds, seconds[5], 1e-6);
}

TEST(Ledger, OfAJobThatWaitsIsAllQueued) {
  Expect(LedgerOf(Job(), {}, kBegin + 7), {7, 0, 0, 0, 0, 0});
}

TEST(Ledger, OfAnUndisturbedJobHasQueueStartStepsAndSaves) {
  AttemptRecord attempt = Attempt(1, 3);
  attempt.times = TimesOfNext(nullptr, {});
  Expect(LedgerOf(Job(), std::array{attempt}, kBegin + 5), {3, 2, 0, 0, 0, 0});
  SeeStep(At(10, 1, 2), attempt);
  Expect(LedgerOf(Job(), std::array{attempt}, kBegin + 10), {3, 5, 2, 0, 0, 0});
  StepSighting later = At(40, 15, 2);
  later.checkpoint_seconds = 1.5;
  later.evaluation_seconds = 4;
  SeeStep(later, attempt);
  attempt.ended_at = kBegin + 41;
  JobRecord job = Job();
  job.ended_at = kBegin + 41;
  Expect(LedgerOf(job, std::array{attempt}, kBegin + 999), {3, 5, 31.5, 0, 1.5, 0});
}

TEST(Ledger, CallsStepsThatAreMadeAgainRework) {
  AttemptRecord first = Attempt(1, 0);
  first.times = TimesOfNext(nullptr, {});
  SeeStep(At(2, 1, 1), first);
  SeeStep(At(13, 12, 1), first);
  first.last_step = 12;
  first.times.failed_at = kBegin + 23;
  first.ended_at = kBegin + 25;
  Progress saved;
  saved.checkpoint_step = 10;
  AttemptRecord second = Attempt(2, 30);
  second.times = TimesOfNext(&first, saved);
  // Steps 11 and 12 again, then eight new ones; all are reported at once.
  SeeStep(At(52, 20, 2), second);
  // The first attempt: 1 s start, 12 steps, and 10 s until the failure was noticed, 2 until the
  // ranks were gone. Then 5 s in the queue, a start, and 20 s of steps; 4 of these repeat.
  const std::array attempts{first, second};
  const Ledger ledger = LedgerOf(Job(), attempts, kBegin + 52);
  EXPECT_NEAR(ledger.Total(), 52, 1e-9);
  EXPECT_NEAR(ledger.queued_seconds, 5, 1e-9);
  EXPECT_NEAR(ledger.recovery_seconds, 12, 1e-9);
  EXPECT_NEAR(ledger.starting_seconds, 1 + 20, 1e-9)
      << "without the report of its first step an attempt has one step before it is seen";
  EXPECT_NEAR(ledger.rework_seconds, 2 * 2.0 / 10, 1e-9);
}

TEST(Ledger, KnowsTheFirstStepByItsReport) {
  AttemptRecord last = Attempt(1, 0);
  last.last_step = 12;
  Progress saved;
  saved.checkpoint_step = 10;
  AttemptRecord attempt = Attempt(2, 30);
  attempt.times = TimesOfNext(&last, saved);
  attempt.times.training_at = kBegin + 42;  // when the report came: the end of step 11
  SeeStep(At(60, 20, 2), attempt);
  Ledger ledger;
  AddAttempt(attempt, kBegin + 60, ledger);
  EXPECT_NEAR(ledger.starting_seconds, 10, 1e-9);
  EXPECT_NEAR(ledger.rework_seconds, 4, 1e-9) << "two of ten steps in 20 s";
  EXPECT_NEAR(ledger.useful_seconds, 16, 1e-9);
}

TEST(Ledger, CallsTheTimeOfDroppedUpdatesAndOfGoingBackRework) {
  AttemptRecord attempt = Attempt(1, 0);
  attempt.times = TimesOfNext(nullptr, {});
  SeeStep(At(1, 1), attempt);
  StepSighting dropped = At(11, 11);
  dropped.skipped_steps = 2;
  SeeStep(dropped, attempt);
  EXPECT_NEAR(attempt.times.rework_seconds, 2, 1e-9);
  StepSighting back = At(15, 8);
  back.skipped_steps = 2;
  SeeStep(back, attempt);  // loads a checkpoint, and makes step 8 again
  EXPECT_NEAR(attempt.times.rework_seconds, 6, 1e-9);
  StepSighting on = At(20, 13);
  on.skipped_steps = 2;
  SeeStep(on, attempt);  // 9, 10 and 11 again, 12 and 13 not
  EXPECT_NEAR(attempt.times.rework_seconds, 9, 1e-9);
  Ledger ledger;
  AddAttempt(attempt, kBegin + 20, ledger);
  Expect(ledger, {0, 0, 11, 9, 0, 0});
}

TEST(Ledger, CallsWaitsForDataAndForAStragglerNeitherUsefulNorRework) {
  AttemptRecord last = Attempt(1, 0);
  last.last_step = 5;
  AttemptRecord attempt = Attempt(2, 0);
  attempt.times = TimesOfNext(&last, {});
  SeeStep(At(1, 1), attempt);
  // Nine steps in 20 s: 4 s of waiting for data, then 0.5 s a step for a straggler that waited for
  // that data, too. Four of the nine are made again.
  StepSighting seen = At(21, 10);
  seen.data_wait_seconds = 4;
  seen.excess_seconds = 0.5;
  SeeStep(seen, attempt);
  // In the next five seconds it waits for nothing.
  StepSighting later = At(26, 15);
  later.data_wait_seconds = 4;
  later.excess_seconds = 0.5;
  SeeStep(later, attempt);
  Ledger ledger;
  AddAttempt(attempt, kBegin + 26, ledger);
  EXPECT_NEAR(ledger.data_wait_seconds, 4, 1e-6);
  EXPECT_NEAR(ledger.straggler_seconds, (9 * 0.5 - 4) + 5 * 0.5, 1e-6);
  EXPECT_NEAR(ledger.rework_seconds, 1 + (20 - 4 - 0.5) * 4 / 9, 1e-6);
  EXPECT_NEAR(ledger.Total(), 26, 1e-6);
}

TEST(Ledger, HasTheUsefulTimeThatTheStepsThemselvesTook) {
  // What a run did, second by second; the ledger sees a report of every third step.
  AttemptRecord attempt = Attempt(1, 2);
  attempt.times = TimesOfNext(nullptr, {});
  double now = 5, useful = 0, data = 0, saves = 0;
  for (int64_t step = 1; step <= 300; ++step) {
    const double waited = step % 7 == 0 ? 1.5 : 0.05, worked = 0.4 + 0.01 * (step % 11);
    const double saved = step % 50 == 0 ? 2 : 0;
    now += waited + worked + saved;
    useful += worked;
    data += waited;
    saves += saved;
    if (step > 1 && step % 3 != 0) continue;
    StepSighting seen = At(now, step, waited + worked + saved);
    seen.data_wait_seconds = data;
    seen.checkpoint_seconds = saves;
    SeeStep(seen, attempt);
  }
  attempt.ended_at = kBegin + now;
  JobRecord job = Job();
  job.ended_at = kBegin + now;
  const Ledger ledger = LedgerOf(job, std::array{attempt}, kBegin + now);
  EXPECT_NEAR(ledger.useful_seconds, useful, 0.01 * useful);
  EXPECT_NEAR(ledger.data_wait_seconds, data, 1e-6);
  EXPECT_NEAR(ledger.checkpoint_seconds, saves, 1e-6);
  EXPECT_NEAR(ledger.queued_seconds + ledger.starting_seconds + ledger.rework_seconds +
                  ledger.recovery_seconds + data + saves + useful,
              now, 0.01 * now);
}

TEST(Ledger, DoesNotCallSavesAndValidationRework) {
  AttemptRecord last = Attempt(1, 0);
  last.last_step = 10;
  AttemptRecord attempt = Attempt(2, 0);
  attempt.times = TimesOfNext(&last, {});
  SeeStep(At(1, 1), attempt);
  StepSighting seen = At(21, 10);
  seen.checkpoint_seconds = 3;
  seen.evaluation_seconds = 8;
  SeeStep(seen, attempt);
  Ledger ledger;
  AddAttempt(attempt, kBegin + 21, ledger);
  Expect(ledger, {0, 0, 8, 10, 3, 0});
}

TEST(Ledger, OfAFailureBeforeTheFirstStepHasStartAndRecovery) {
  AttemptRecord attempt = Attempt(1, 2);
  attempt.times.failed_at = kBegin + 6;
  Expect(LedgerOf(Job(), std::array{attempt}, kBegin + 9), {2, 4, 0, 0, 0, 3});
}

TEST(Ledger, SumsToTheWallTimeWhateverIsReported) {
  // Clocks that go back, and numbers that contradict each other.
  AttemptRecord attempt = Attempt(1, 5);
  attempt.times.training_at = kBegin + 2;
  StepSighting seen = At(9, 4, 100);
  seen.checkpoint_seconds = 50;
  seen.data_wait_seconds = 40;
  seen.excess_seconds = 30;
  SeeStep(seen, attempt);
  SeeStep(At(8, 6, 1), attempt);
  attempt.times.rework_seconds = 70;
  attempt.times.failed_at = kBegin + 1;
  attempt.ended_at = kBegin + 20;
  const Ledger ledger = LedgerOf(Job(), std::array{attempt}, kBegin + 30);
  EXPECT_NEAR(ledger.Total(), 30, 1e-9);
  for (double seconds : {ledger.queued_seconds, ledger.starting_seconds, ledger.useful_seconds,
                         ledger.rework_seconds, ledger.checkpoint_seconds, ledger.recovery_seconds,
                         ledger.data_wait_seconds, ledger.straggler_seconds}) {
    EXPECT_GE(seconds, 0);
  }
}

}  // namespace
}  // namespace weft::coordinator
