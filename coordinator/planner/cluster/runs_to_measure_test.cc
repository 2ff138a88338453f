// Which runs are worth measuring: those that say most of the others.
#include "coordinator/planner/cluster/runs_to_measure.h"

#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

MeasuredRun Candidate(int64_t width, int64_t layers, int64_t batch = 64) {
  return {*FindAccelerator("A100-SXM-80GB"),
          {.model = {layers, width, 16, 16, 4 * width, false, 51200, 1024},
           .global_batch = batch,
           .recomputation = Recomputation::kBlock,
           .precision = "fp16"}};
}

SoftwareStack Stack() {
  return *FindStack("megatron-2021");
}

TEST(RunsToMeasure, CoversTheShapesWithMostRunsFirst) {
  // Three shapes far apart: four runs, two runs and one.
  const std::vector<MeasuredRun> candidates = {
      Candidate(8192, 12), Candidate(1024, 12), Candidate(1024, 16), Candidate(1024, 20),
      Candidate(1024, 24), Candidate(3072, 12), Candidate(3072, 24)};
  const auto widths = [&](size_t count) {
    std::multiset<int64_t> found;
    for (const size_t i : RunsToMeasure(Stack(), candidates, count)) {
      found.insert(candidates[i].run.model.width);
    }
    return found;
  };
  EXPECT_THAT(widths(1), ElementsAre(1024));
  EXPECT_THAT(widths(2), ElementsAre(1024, 3072));
  // A second run of a shape says less than the first one of another.
  EXPECT_THAT(widths(3), ElementsAre(1024, 3072, 8192));
}

TEST(RunsToMeasure, LooksAtNoMeasuredTimeAndAtNothingThatCannotRun) {
  std::vector<MeasuredRun> candidates = {Candidate(1024, 12), Candidate(1024, 12, 0),
                                         Candidate(4096, 12)};
  EXPECT_THAT(RunsToMeasure(Stack(), candidates, 9), ElementsAre(0, 2));
  const auto before = RunsToMeasure(Stack(), candidates, 1);
  for (MeasuredRun& run : candidates) run.seconds = 1.0 + static_cast<double>(run.run.model.width);
  EXPECT_EQ(RunsToMeasure(Stack(), candidates, 1), before);
  EXPECT_THAT(RunsToMeasure(Stack(), {}, 3), IsEmpty());
}

}  // namespace
}  // namespace weft::planner
