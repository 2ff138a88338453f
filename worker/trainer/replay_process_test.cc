// Ranks that compute a micro-batch twice (train.replay_every_steps), as processes, one of which computes
// wrong.
#include "worker/trainer/testing/trainer_process.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>

namespace weft::trainer {
namespace {

using testing::HasSubstr;

class ReplayProcessTest : public TrainerProcessTest {
 protected:
  AttemptSpec ReplaySpec(const std::string& run, int64_t ranks, int64_t zero_stage = 0) const {
    AttemptSpec spec = Spec(run);
    spec.job.train.replay_every_steps = 4;
    spec.plan.mesh.data = spec.world_size = spec.job.resources.ranks = ranks;
    spec.plan.zero_stage = spec.job.resources.zero_stage = zero_stage;
    spec.plan.micro_batch = 1;
    spec.plan.accumulation_steps = spec.job.train.global_batch / ranks;
    return spec;
  }

  /// What each rank says at its end, with `failpoints` on rank `wrong`; finished ranks nothing.
  std::vector<std::optional<FailedMessage>> Run(AttemptSpec spec, int64_t wrong = -1,
                                                const std::string& failpoints = "") {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (spec.rank = 0; spec.rank < spec.world_size; ++spec.rank) {
      ranks.push_back(Start(spec, spec.rank == wrong ? failpoints : ""));
    }
    std::vector<std::optional<FailedMessage>> ends;
    for (const auto& rank : ranks) ends.push_back(rank->Await<FailedMessage>());
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->Wait(), wrong < 0 ? kExitDone : kExitRetry);
    }
    return ends;
  }
};

TEST_F(ReplayProcessTest, SoundRanksTrainAsWithoutIt) {
  for (const int64_t stage : {0, 2, 3}) {
    AttemptSpec spec = ReplaySpec("sound" + std::to_string(stage), 2, stage);
    for (const auto& end : Run(spec)) EXPECT_FALSE(end);
    AttemptSpec plain = ReplaySpec("plain" + std::to_string(stage), 2, stage);
    plain.job.train.replay_every_steps = 0;
    for (const auto& end : Run(plain)) EXPECT_FALSE(end);
    EXPECT_EQ(Losses(spec), Losses(plain));
  }
}

TEST_F(ReplayProcessTest, OneWrongBitEndsTheAttemptAndNamesItsRank) {
  for (const int64_t stage : {0, 2, 3}) {
    const auto ends = Run(ReplaySpec("once" + std::to_string(stage), 2, stage), 1,
                          "trainer.replay.gradient=error@3");
    ASSERT_TRUE(ends[0] && ends[1]);
    EXPECT_TRUE(ends[1]->silent_corruption);
    EXPECT_THAT(ends[1]->message, HasSubstr("a micro-batch of step 3 was computed twice"));
    EXPECT_THAT(ends[1]->message, HasSubstr("rank 1 on "));
    EXPECT_FALSE(ends[0]->silent_corruption) << "it is sound";
    EXPECT_EQ(ends[0]->code, "ABORTED");
    EXPECT_THAT(ends[0]->message, HasSubstr("rank 1 on "));
  }
}

TEST_F(ReplayProcessTest, ARankThatIsAlwaysWrongIsFoundByItsNeighbours) {
  AttemptSpec spec = ReplaySpec("always", 4);
  const auto ends = Run(spec, 2, "trainer.replay.gradient=error");
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    ASSERT_TRUE(ends[rank]);
    EXPECT_EQ(ends[rank]->silent_corruption, rank == 2) << rank;
  }
}

TEST_F(ReplayProcessTest, OfTwoRanksThatDisagreeForGoodBothAreSuspected) {
  const auto ends = Run(ReplaySpec("two", 2), 0, "trainer.replay.gradient=error");
  for (const auto& end : ends) {
    ASSERT_TRUE(end);
    EXPECT_TRUE(end->silent_corruption);
    EXPECT_THAT(end->message, HasSubstr(" or rank 1 on "));
  }
}

TEST_F(ReplayProcessTest, OneRankComparesItselfWithItself) {
  const auto ends = Run(ReplaySpec("one", 1), 0, "trainer.replay.gradient=error@1");
  ASSERT_TRUE(ends[0]);
  EXPECT_TRUE(ends[0]->silent_corruption);
  EXPECT_THAT(ends[0]->message, HasSubstr("rank 0 on "));
}

}  // namespace
}  // namespace weft::trainer
