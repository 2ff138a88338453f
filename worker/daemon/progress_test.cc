#include "worker/daemon/progress.h"

#include <gtest/gtest.h>

#include "common/spec/phases.h"

namespace weft::daemon {
namespace {

trainer::ProgressMessage Step(int64_t step, int64_t of) {
  trainer::ProgressMessage message;
  message.step = step;
  message.steps_total = of;
  message.step_seconds = 2;
  message.tokens = 100 * step;
  message.loss = 3;
  return message;
}

TEST(Progress, WithoutPhasesStepsAreThoseOfTheRanks) {
  ProgressRecord record;
  record.Take(Step(10, 40));
  record.Take(trainer::EvaluationMessage{.step = 10, .loss = 2.5});
  EXPECT_EQ(record.message().step(), 10);
  EXPECT_EQ(record.message().steps_total(), 40);
  EXPECT_EQ(record.message().tokens(), 1000);
  EXPECT_EQ(record.message().validation_step(), 10);
  EXPECT_DOUBLE_EQ(record.message().eta_seconds(), 60);
}

TEST(Progress, TheCheckpointThatAnAttemptGoesOnFromIsItsNewest) {
  ProgressRecord fresh;
  fresh.Take(trainer::StartedMessage{});
  EXPECT_FALSE(fresh.message().has_checkpoint_step());
  PhasePlace place;
  place.steps_before = 10;
  ProgressRecord resumed(place);
  resumed.Take(trainer::StartedMessage{.step = 4, .resumed_from = "/run/checkpoints/step-4"});
  EXPECT_EQ(resumed.message().checkpoint_step(), 14);
  trainer::CheckpointMessage checkpoint;
  checkpoint.step = 8;
  checkpoint.state = "verified";
  resumed.Take(checkpoint);
  EXPECT_EQ(resumed.message().checkpoint_step(), 18);
}

TEST(Progress, OfAPhaseIsReportedAsThatOfTheWholeJob) {
  JobSpec job;
  job.model.vocab_size = 512;
  job.phases.resize(3);
  for (PhaseSpec& phase : job.phases) phase.steps = 10;
  job.phases[2].steps = 20;
  job.phases[2].global_batch = 3 * job.train.global_batch;
  PhasePlace place = PlaceOfPhase(job, 1);
  place.tokens_before = 5000;
  ProgressRecord record(place);
  record.Take(Step(4, 10));
  trainer::CheckpointMessage checkpoint;
  checkpoint.step = 4;
  checkpoint.state = "verified";
  record.Take(checkpoint);
  record.Take(trainer::EvaluationMessage{.step = 0, .loss = 2.5});
  const v1::Progress& progress = record.message();
  EXPECT_EQ(progress.step(), 14);
  EXPECT_EQ(progress.steps_total(), 40);
  EXPECT_EQ(progress.tokens(), 5400);
  EXPECT_EQ(progress.checkpoint_step(), 14);
  EXPECT_EQ(progress.validation_step(), 10) << "of the weights that the phase starts from";
  // Six steps of this phase, and twenty of three times the work.
  EXPECT_DOUBLE_EQ(progress.eta_seconds(), 2 * (6 + 60));
}

}  // namespace
}  // namespace weft::daemon
