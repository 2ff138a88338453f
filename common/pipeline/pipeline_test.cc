// Pipeline schedules against the formulas of their papers and hand-counted cases.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/pipeline/schedule.h"
#include "common/pipeline/simulate.h"
#include "common/pipeline/zero_bubble.h"

namespace weft {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

PipelineCosts Alike(int64_t stages, StageCost cost, double hop = 0) {
  return {std::vector<StageCost>(static_cast<size_t>(stages), cost), hop};
}

PipelineTimeline Simulate(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  auto timeline = SimulatePipeline(schedule, costs);
  EXPECT_TRUE(timeline.ok()) << timeline.status().ToString();
  if (!timeline.ok()) return {};
  EXPECT_EQ(EndOfPipeline(schedule, costs), timeline->end);
  return *timeline;
}

std::vector<double> Peaks(const PipelineTimeline& timeline) {
  std::vector<double> peaks;
  for (const auto& rank : timeline.ranks) peaks.push_back(rank.peak_activations);
  return peaks;
}

// A forward pass of 1 and a backward pass of 2 a rank, whatever the number of its stages.
StageCost Part(double chunks) {
  return {1 / chunks, 1 / chunks, 1 / chunks, 1 / chunks};
}

TEST(PipelineSchedule, EveryScheduleRunsEachStepOnceWithoutStopping) {
  for (int64_t p = 1; p <= 16; ++p) {
    for (int64_t m : {1, 2, 3, 7, 16, 33, 64}) {
      SCOPED_TRACE(std::to_string(p) + " ranks, " + std::to_string(m) + " micro-batches");
      EXPECT_TRUE(CheckSchedule(GPipeSchedule(p, m)).ok());
      EXPECT_TRUE(CheckSchedule(OneForwardOneBackwardSchedule(p, m)).ok());
      for (int64_t v : {2, 3}) {
        auto interleaved = InterleavedSchedule(p, v, m);
        ASSERT_EQ(interleaved.ok(), m % p == 0);
        if (!interleaved.ok()) continue;
        EXPECT_TRUE(CheckSchedule(*interleaved).ok());
      }
    }
  }
}

TEST(PipelineSchedule, OfFourRanksIsTheOneOfThePaper) {
  EXPECT_EQ(FormatSchedule(OneForwardOneBackwardSchedule(3, 4)),
            "F0 F1 F2 B0 F3 B1 B2 B3\n"
            "F0 F1 B0 F2 B1 F3 B2 B3\n"
            "F0 B0 F1 B1 F2 B2 F3 B3\n");
  EXPECT_EQ(FormatSchedule(*InterleavedSchedule(2, 2, 2)),
            "F0 F1 F0' F1' B0' B1' B0 B1\n"
            "F0 F1 F0' B0' F1' B1' B0 B1\n");
}

TEST(PipelineSchedule, TakesTheTimeThatTheFormulasSay) {
  for (const auto& [p, m] : {std::pair<int64_t, int64_t>{4, 8}, {8, 16}, {8, 32}}) {
    const double work = 3.0 * static_cast<double>(m), fill = 3.0 * static_cast<double>(p - 1);
    EXPECT_DOUBLE_EQ(Simulate(GPipeSchedule(p, m), Alike(p, Part(1))).end, work + fill);
    const auto timeline = Simulate(OneForwardOneBackwardSchedule(p, m), Alike(p, Part(1)));
    EXPECT_DOUBLE_EQ(timeline.end, work + fill);
    EXPECT_NEAR(timeline.BubbleFraction(), fill / (work + fill), 1e-12);
    for (int64_t v : {2, 4}) {
      const auto chunks = static_cast<double>(v);
      EXPECT_NEAR(Simulate(*InterleavedSchedule(p, v, m), Alike(p * v, Part(chunks))).end,
                  work + fill / chunks, 1e-9);
    }
  }
}

TEST(PipelineSchedule, KeepsTheActivationsThatTheFormulasSay) {
  const int64_t p = 8, m = 32;
  EXPECT_THAT(Peaks(Simulate(GPipeSchedule(p, m), Alike(p, Part(1)))), Each(m));
  EXPECT_THAT(Peaks(Simulate(OneForwardOneBackwardSchedule(p, m), Alike(p, Part(1)))),
              ElementsAre(8, 7, 6, 5, 4, 3, 2, 1));
  EXPECT_THAT(Peaks(Simulate(*InterleavedSchedule(p, 2, m), Alike(2 * p, Part(2)))),
              ElementsAre(11.5, 10.5, 9.5, 8.5, 7.5, 6.5, 5.5, 4.5));
  EXPECT_THAT(Peaks(Simulate(*InterleavedSchedule(p, 4, m), Alike(4 * p, Part(4)))),
              ElementsAre(9.75, 9.25, 8.75, 8.25, 7.75, 7.25, 6.75, 6.25));
}

TEST(PipelineSchedule, HopsCostMoreWithMoreStages) {
  EXPECT_NEAR(Simulate(OneForwardOneBackwardSchedule(8, 16), Alike(8, Part(1), 0.2)).end, 77, 1e-9);
  EXPECT_NEAR(Simulate(*InterleavedSchedule(8, 4, 16), Alike(32, Part(4), 0.2)).end, 65.65, 1e-9);
}

TEST(PipelineSchedule, FollowsTheSlowestStage) {
  PipelineCosts costs = Alike(4, {1, 1, 1, 1});
  costs.stages[2] = {2, 2, 2, 1};
  // Stage 2 waits for two forward steps, once for the first gradient, and at the end the stages
  // before it have two backward steps.
  EXPECT_DOUBLE_EQ(Simulate(OneForwardOneBackwardSchedule(4, 12), costs).end, 2 + 12 * 6 + 1 + 4);
}

TEST(PipelineSchedule, ThatCannotRunIsRefusedWithTheStep) {
  const auto fails = [](const PipelineSchedule& schedule, const std::string& why) {
    const Status status = CheckSchedule(schedule);
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  const PipelineSchedule good = OneForwardOneBackwardSchedule(2, 3);
  PipelineSchedule bad = good;
  std::swap(bad.steps[0][0], bad.steps[0][1]);  // F1 F0 B0 ... against F0 B0 F1 ...
  std::swap(bad.steps[0][1], bad.steps[0][2]);
  fails(bad, "B0 of chunk 0 on rank 0 comes before its forward step");
  bad = good;
  std::swap(bad.steps[0][1], bad.steps[0][2]);  // F0 B0: rank 0 wants B0 before rank 1 has F1
  std::swap(bad.steps[1][0], bad.steps[1][2]);  // F1 first
  std::swap(bad.steps[1][1], bad.steps[1][3]);
  fails(bad,
        "the pipeline comes to a stop: step B0 of chunk 0 on rank 0 waits, step F1 of chunk 0 on "
        "rank "
        "1 waits for a step that never runs");
  bad = good;
  bad.steps[0].pop_back();
  fails(bad, "rank 0 has 5 steps of 6");
  bad = good;
  bad.steps[1].pop_back();
  fails(bad, "comes to a stop: step B2 of chunk 0 on rank 0 waits");
  bad = good;
  bad.steps[1].push_back({PipelineOp::kForward, 0, 2});
  fails(bad, "F2 of chunk 0 on rank 1 comes twice");
  bad = good;
  bad.steps[0][0].micro_batch = 3;
  fails(bad, "F3 of chunk 0 on rank 0 is not of this pipeline");
  bad = good;
  bad.steps[0][0].chunk = 1;
  fails(bad, "it has 1 chunks");
  bad = good;
  bad.split_backward = true;
  fails(bad, "backward passes are split here");
  bad = good;
  bad.steps.pop_back();
  fails(bad, "with the steps of 1 ranks");
  EXPECT_EQ(SimulatePipeline(good, Alike(3, Part(1))).status().message(),
            "costs of 3 stages for 2");
}

TEST(ZeroBubble, LeavesTheBubbleOfThePaper) {
  // With memory for 2 p - 1 micro-batches nothing but the way to the last stage is left.
  const PipelineCosts uneven = Alike(8, {1, 1.2, 0.8, 1});
  EXPECT_NEAR(Simulate(*ZeroBubbleSchedule(uneven, 16, 15), uneven).end, 48 + 7, 1e-9);
  for (const StageCost& cost : {StageCost{1, 1, 1, 1}, {1, 1.2, 0.8, 1}, {1, 1.1, 0.9, 1}}) {
    const PipelineCosts costs = Alike(8, cost);
    const auto timeline = Simulate(*ZeroBubbleSchedule(costs, 16, 8), costs);
    const double work = 16 * (cost.forward + cost.backward());
    const double bubble = 7 * (cost.forward + cost.backward_input - cost.backward_weight);
    EXPECT_NEAR(timeline.end, work + bubble, 1e-9);
    EXPECT_THAT(Peaks(timeline), Each(Le(8)));
  }
}

TEST(ZeroBubble, RunsWithinItsMemoryAndNeverSlowerThanOneForwardOneBackward) {
  for (int64_t p : {1, 2, 3, 5, 8}) {
    for (int64_t m : {1, 2, 5, 12}) {
      for (int64_t kept = 1; kept <= 2 * p; ++kept) {
        SCOPED_TRACE(std::to_string(p) + " " + std::to_string(m) + " " + std::to_string(kept));
        PipelineCosts costs = Alike(p, {1, 1.3, 0.7, 1}, 0.1);
        for (int64_t s = 0; s < p; ++s) costs.stages[s].forward += 0.1 * static_cast<double>(s % 3);
        auto schedule = ZeroBubbleSchedule(costs, m, kept);
        ASSERT_TRUE(schedule.ok());
        const auto timeline = Simulate(*schedule, costs);
        EXPECT_THAT(Peaks(timeline), Each(Le(kept)));
        if (kept < std::min(m, p)) continue;
        EXPECT_LE(timeline.end, Simulate(OneForwardOneBackwardSchedule(p, m), costs).end + 1e-9);
      }
    }
  }
  EXPECT_FALSE(ZeroBubbleSchedule(Alike(0, {}), 1, 1).ok());
  EXPECT_FALSE(ZeroBubbleSchedule(Alike(2, Part(1)), 0, 1).ok());
  EXPECT_FALSE(ZeroBubbleSchedule(Alike(2, Part(1)), 4, 0).ok());
}

}  // namespace
}  // namespace weft
