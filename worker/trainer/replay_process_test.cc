// A rank that computes a micro-batch twice (train.replay_every_steps), as a process that computes
// wrong.
#include "worker/trainer/testing/trainer_process.h"

#include <string>

#include <gmock/gmock.h>

namespace weft::trainer {
namespace {

using testing::HasSubstr;

class ReplayProcessTest : public TrainerProcessTest {
 protected:
  AttemptSpec ReplaySpec(const std::string& run) const {
    AttemptSpec spec = Spec(run);
    spec.job.train.replay_every_steps = 4;
    return spec;
  }
};

TEST_F(ReplayProcessTest, ASoundRankTrainsAsWithoutIt) {
  const AttemptSpec spec = ReplaySpec("replay");
  EXPECT_EQ(Start(spec)->Wait(), kExitDone);
  AttemptSpec plain = ReplaySpec("plain");
  plain.job.train.replay_every_steps = 0;
  EXPECT_EQ(Start(plain)->Wait(), kExitDone);
  EXPECT_EQ(Losses(spec), Losses(plain));
  EXPECT_EQ(FinalState(spec), FinalState(plain));
}

TEST_F(ReplayProcessTest, OneWrongBitEndsTheAttemptAndIsReported) {
  const AttemptSpec spec = ReplaySpec("wrong");
  const auto rank = Start(spec, "trainer.replay.gradient=error@3", true);
  const std::optional<FailedMessage> failed = rank->Await<FailedMessage>();
  EXPECT_EQ(rank->Wait(), kExitRetry);
  ASSERT_TRUE(failed);
  EXPECT_TRUE(failed->silent_corruption);
  EXPECT_FALSE(failed->numerics);
  EXPECT_THAT(failed->message, HasSubstr("a micro-batch of step 3 was computed twice"));
  EXPECT_THAT(failed->message, HasSubstr("rank 0 on "));
  EXPECT_THAT(failed->message, HasSubstr("hint: take the machine out of service"));
  EXPECT_EQ(Losses(spec).size(), 3u) << "that step updates nothing";
}

}  // namespace
}  // namespace weft::trainer
