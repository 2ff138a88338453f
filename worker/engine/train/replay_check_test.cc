#include "worker/engine/train/replay_check.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/failpoint.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {
namespace {

constexpr int64_t kInterval = 2;
constexpr int64_t kSteps = 6;

MeshCase CaseOf(int64_t ranks, int64_t zero_stage, int64_t interval = kInterval) {
  MeshCase c{TinyJob(8), TinyPlan("fp32", 1, 8 / ranks)};
  c.job.model.dropout = 0.1;
  c.job.train.steps = kSteps;
  c.job.train.replay_every_steps = interval;
  c.plan.mesh.data = ranks;
  c.plan.zero_stage = zero_stage;
  return c;
}

/// A bit of a weight that all blocks read becomes another one, as in memory that is broken.
void BreakWeight(ParameterSet& parameters) {
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].name.ends_with("h.1.mlp.c_fc.weight")) continue;
    static_cast<uint32_t*>(parameters.value(i).data)[5] ^= 1;
    return;
  }
  ADD_FAILURE() << "no such weight";
}

/// What each rank finds, or nothing, and in how many steps. Before step `at` (or never) rank
/// `broken` gets a wrong weight.
struct Findings {
  std::vector<std::optional<WrongBits>> found;
  std::vector<int64_t> steps;
};

Findings Train(const MeshCase& c, int64_t broken = -1, int64_t at = -1) {
  const auto ranks = static_cast<size_t>(c.ranks());
  Findings findings{std::vector<std::optional<WrongBits>>(ranks), std::vector<int64_t>(ranks)};
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    const auto own = static_cast<size_t>(world.rank());
    while (!rank.trainer->finished()) {
      if (world.rank() == broken && rank.trainer->counters().step == at) {
        BreakWeight(rank.run.model->parameters());
      }
      const auto report = rank.trainer->Step();
      findings.found[own] = rank.trainer->wrong_bits();
      findings.steps[own] = rank.trainer->counters().step;
      EXPECT_EQ(report.ok(), !findings.found[own]) << report.status().message();
      if (!report.ok()) return;
    }
  });
  return findings;
}

class ReplayCheckTest : public ::testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(SetFailpoints("").ok()); }
};

TEST_F(ReplayCheckTest, ChangesNoBitOfASoundTraining) {
  for (const int64_t stage : {0, 1, 2, 3}) {
    for (const int64_t ranks : {1, 2, 4}) {
      if (ranks == 1 && stage > 0) continue;
      SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
      const std::vector<MeshOutcome> checked = TrainOnMesh(CaseOf(ranks, stage));
      const std::vector<MeshOutcome> plain = TrainOnMesh(CaseOf(ranks, stage, 0));
      for (size_t step = 0; step < kSteps; ++step) {
        EXPECT_EQ(checked[0].reports[step].loss, plain[0].reports[step].loss);
      }
      EXPECT_EQ(checked[0].state.tensors, plain[0].state.tensors);
    }
  }
}

TEST_F(ReplayCheckTest, NeighboursFindARankWithAWrongWeight) {
  for (const int64_t broken : {0, 2}) {
    const Findings findings = Train(CaseOf(4, 0), broken, 2);
    for (size_t rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(findings.found[rank]) << rank;
      EXPECT_EQ(findings.found[rank]->rank, broken);
      EXPECT_EQ(findings.found[rank]->suspects, std::vector<int64_t>{broken});
      EXPECT_EQ(findings.found[rank]->step, 3) << "the next check";
      EXPECT_EQ(findings.steps[rank], 3) << "no update follows";
    }
  }
}

TEST_F(ReplayCheckTest, OfTwoThatDisagreeForGoodBothAreSuspected) {
  const Findings findings = Train(CaseOf(2, 0), 1, 2);
  for (const auto& found : findings.found) {
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, std::nullopt);
    EXPECT_EQ(found->suspects, (std::vector<int64_t>{0, 1}));
  }
}

TEST_F(ReplayCheckTest, ARankThatDoesNotRepeatItselfIsNamed) {
  for (const int64_t stage : {0, 2, 3}) {
    for (const int64_t ranks : {1, 2, 4}) {
      if (ranks == 1 && stage > 0) continue;
      SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
      ASSERT_TRUE(SetFailpoints("trainer.replay.gradient=error@7").ok());
      const Findings findings = Train(CaseOf(ranks, stage));
      for (const auto& found : findings.found) {
        ASSERT_TRUE(found);
        EXPECT_EQ(found->step, 1) << "the first check";
        ASSERT_TRUE(found->rank) << "one of them, whichever it was";
        EXPECT_EQ(found->rank, findings.found[0]->rank);
        EXPECT_EQ(found->suspects, std::vector<int64_t>{*found->rank});
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
