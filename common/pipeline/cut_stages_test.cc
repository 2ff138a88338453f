// Cuts against all that can be made, and schedules by their names.
#include "common/pipeline/cut_stages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/pipeline/named_schedule.h"
#include "common/rng.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<StageMachine> Alike(int64_t stages) {
  return std::vector<StageMachine>(static_cast<size_t>(stages));
}

/// The cost of each stage.
std::vector<double> Costs(const std::vector<double>& blocks, double first, double last,
                          const std::vector<int64_t>& cut) {
  std::vector<double> costs;
  auto block = blocks.begin();
  for (const int64_t count : cut) {
    costs.push_back(std::accumulate(block, block + count, 0.0));
    block += count;
  }
  costs.front() += first;
  costs.back() += last;
  return costs;
}

double Most(const std::vector<double>& costs) {
  return *std::max_element(costs.begin(), costs.end());
}

double Squares(const std::vector<double>& costs) {
  return std::inner_product(costs.begin(), costs.end(), costs.begin(), 0.0);
}

/// Every way to cut `blocks` blocks into this many stages.
void ForEachCut(int64_t blocks, int64_t stages, std::vector<int64_t>& cut, const auto& visit) {
  if (stages == 1) {
    cut.push_back(blocks);
    visit(cut);
    cut.pop_back();
    return;
  }
  for (int64_t count = 1; count <= blocks - (stages - 1); ++count) {
    cut.push_back(count);
    ForEachCut(blocks - count, stages - 1, cut, visit);
    cut.pop_back();
  }
}

TEST(CutStages, LeavesTheMostCostlyStageTheLeastAndTheOthersEven) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    PhiloxStream random(PhiloxKey{3, seed, 0});
    const auto number = [&](uint64_t below) {
      return static_cast<double>(1 + random.Below(below));
    };
    std::vector<double> blocks(1 + random.Below(9));
    for (double& block : blocks) block = number(6);
    const double first = number(4) - 1, last = number(20) - 1;
    const auto count = static_cast<int64_t>(blocks.size());
    for (int64_t stages = 1; stages <= count; ++stages) {
      double most = std::numeric_limits<double>::infinity(), squares = most;
      std::vector<int64_t> in_flight;
      ForEachCut(count, stages, in_flight, [&](const std::vector<int64_t>& cut) {
        const std::vector<double> costs = Costs(blocks, first, last, cut);
        if (std::pair(Most(costs), Squares(costs)) >= std::pair(most, squares)) return;
        most = Most(costs);
        squares = Squares(costs);
      });
      auto cut = CutStages(blocks, first, last, Alike(stages));
      ASSERT_TRUE(cut.ok());
      ASSERT_EQ(static_cast<int64_t>(cut->size()), stages);
      EXPECT_EQ(std::accumulate(cut->begin(), cut->end(), int64_t{0}), count);
      const std::vector<double> costs = Costs(blocks, first, last, *cut);
      EXPECT_EQ(Most(costs), most);
      EXPECT_EQ(Squares(costs), squares);
    }
  }
  // A classifier as costly as two blocks.
  EXPECT_THAT(*CutStages({1, 1, 1, 1, 1, 1, 1}, 0, 2, Alike(4)), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(CutStages({1, 1}, 0, 0, Alike(3)).status().message(),
              HasSubstr("hint: fewer stages"));
  EXPECT_FALSE(CutStages({1}, 0, 0, {}).ok());
  EXPECT_THAT(*CutStages({}, 0, 0, Alike(1)), ElementsAre(0)) << "a network without blocks";
  EXPECT_FALSE(CutStages({}, 0, 0, Alike(2)).ok());
}

TEST(CutStages, LeavesEachMachineWhatItIsFastAndLargeEnoughFor) {
  int64_t without_memory = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    PhiloxStream random(PhiloxKey{4, seed, 0});
    const auto number = [&](uint64_t below) {
      return static_cast<double>(1 + random.Below(below));
    };
    std::vector<double> blocks(2 + random.Below(7));
    for (double& block : blocks) block = number(6);
    const double first = number(4) - 1, last = number(20) - 1;
    const auto count = static_cast<int64_t>(blocks.size());
    std::vector<StageMachine> machines(1 + random.Below(blocks.size()));
    for (StageMachine& machine : machines) {
      machine = {number(4), static_cast<int64_t>(number(blocks.size()))};
    }
    const auto seconds = [&](const std::vector<int64_t>& cut) {
      std::vector<double> costs = Costs(blocks, first, last, cut);
      for (size_t s = 0; s < costs.size(); ++s) costs[s] *= machines[s].slowness;
      return costs;
    };
    double most = std::numeric_limits<double>::infinity(), squares = most;
    std::vector<int64_t> in_flight;
    ForEachCut(count, std::ssize(machines), in_flight, [&](const std::vector<int64_t>& cut) {
      for (size_t s = 0; s < cut.size(); ++s) {
        if (cut[s] > machines[s].most_blocks) return;
      }
      const std::vector<double> own = seconds(cut);
      if (std::pair(Most(own), Squares(own)) >= std::pair(most, squares)) return;
      most = Most(own);
      squares = Squares(own);
    });
    const auto cut = CutStages(blocks, first, last, machines);
    if (most == std::numeric_limits<double>::infinity()) {
      EXPECT_EQ(cut.status().code(), StatusCode::kExhausted);
      ++without_memory;
      continue;
    }
    ASSERT_TRUE(cut.ok()) << cut.status().message();
    EXPECT_EQ(Most(seconds(*cut)), most);
    EXPECT_EQ(Squares(seconds(*cut)), squares);
  }
  EXPECT_GT(without_memory, 5);
  EXPECT_LT(without_memory, 150);
  EXPECT_THAT(*CutStages({1, 1, 1, 1, 1, 1}, 0, 0, {{1}, {2}}), ElementsAre(4, 2));
}

TEST(NamedSchedule, IsWhatTheNameSaysOrAnError) {
  // Those that a job may ask for are all made.
  const auto made = [](const char* name, int64_t ranks, int64_t chunks, int64_t micro_batches) {
    const auto schedule = NamedSchedule(name, ranks, chunks, micro_batches);
    EXPECT_TRUE(schedule.ok()) << name << " " << ranks << " x " << chunks << ", " << micro_batches
                               << ": " << schedule.status().message();
  };
  for (int64_t ranks = 2; ranks <= 12; ++ranks) {
    for (int64_t micro_batches = 1; micro_batches <= 30; ++micro_batches) {
      for (const char* name : {"gpipe", "1f1b", "zero_bubble"}) made(name, ranks, 1, micro_batches);
      if (micro_batches % ranks != 0) continue;
      for (int64_t chunks = 2; chunks <= 5; ++chunks) {
        made("interleaved", ranks, chunks, micro_batches);
      }
    }
  }
  for (const char* name : {"1f1b", "zero_bubble"}) made(name, 48, 1, 96);
  EXPECT_EQ(NamedSchedule("gpipe", 3, 1, 4)->steps, GPipeSchedule(3, 4).steps);
  EXPECT_EQ(NamedSchedule("1f1b", 3, 1, 4)->steps, OneForwardOneBackwardSchedule(3, 4).steps);
  EXPECT_EQ(NamedSchedule("interleaved", 2, 3, 4)->steps, InterleavedSchedule(2, 3, 4)->steps);
  EXPECT_TRUE(NamedSchedule("zero_bubble", 3, 1, 4)->split_backward);
  EXPECT_THAT(NamedSchedule("1f1b", 2, 2, 4).status().message(), HasSubstr("hint: interleaved"));
  EXPECT_THAT(NamedSchedule("interleaved", 2, 2, 3).status().message(), HasSubstr("multiple"));
  EXPECT_THAT(NamedSchedule("2f2b", 2, 1, 3).status().message(), HasSubstr("'2f2b'"));
  EXPECT_THAT(NamedSchedule("gpipe", 0, 1, 3).status().message(), HasSubstr("at least one"));
}

TEST(NamedSchedule, SendsEachRankWhatItWaitsForNext) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t micro_batches : {1, 2, 5, 8, 24}) {
      for (const char* name : {"gpipe", "1f1b", "zero_bubble"}) {
        EXPECT_TRUE(NamedSchedule(name, ranks, 1, micro_batches).ok()) << name << ranks;
      }
      for (const int64_t chunks : {2, 3}) {
        EXPECT_TRUE(NamedSchedule("interleaved", ranks, chunks, ranks * micro_batches).ok());
      }
    }
  }
  // A rank that takes micro-batches in another order than the one before it.
  PipelineSchedule swapped = GPipeSchedule(2, 2);
  std::swap(swapped.steps[1][0], swapped.steps[1][1]);
  EXPECT_TRUE(CheckSchedule(swapped).ok());
  EXPECT_THAT(CheckMessageOrder(swapped).message(), HasSubstr("rank 0 of the pipeline sends what"));
}

}  // namespace
}  // namespace weft
