#include "coordinator/planner/pipeline_time.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/pipeline/named_schedule.h"
#include "common/rng.h"

namespace weft::planner {
namespace {

struct Pipeline {
  const char* schedule;
  int64_t ranks;
  int64_t chunks;
  int64_t passes;
};

double EndOf(const Pipeline& pipeline, const std::vector<StageForecast>& stages) {
  const Result<PipelineSchedule> schedule =
      NamedSchedule(pipeline.schedule, pipeline.ranks, pipeline.chunks, pipeline.passes);
  EXPECT_TRUE(schedule.ok()) << schedule.status().message();
  PipelineCosts costs;
  for (const StageForecast& stage : stages) costs.stages.push_back(stage.cost);
  const Result<PipelineTimeline> timeline = SimulatePipeline(*schedule, costs);
  EXPECT_TRUE(timeline.ok()) << timeline.status().message();
  return timeline->end;
}

double LeastOf(const Pipeline& pipeline, const std::vector<StageForecast>& stages) {
  return LeastPipelineSeconds(stages, pipeline.ranks, pipeline.passes,
                              pipeline.schedule == std::string("zero_bubble"));
}

constexpr Pipeline kPipelines[] = {
    {"gpipe", 4, 1, 6},       {"1f1b", 2, 1, 1},        {"1f1b", 4, 1, 2},       {"1f1b", 5, 1, 12},
    {"interleaved", 3, 2, 6}, {"interleaved", 4, 3, 8}, {"zero_bubble", 4, 1, 9}};

TEST(LeastPipelineSeconds, IsNoLongerThanTheScheduleWhateverTheStagesTake) {
  PhiloxStream random({5, 0, 0});
  for (const Pipeline& pipeline : kPipelines) {
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<StageForecast> stages(static_cast<size_t>(pipeline.ranks * pipeline.chunks));
      for (StageForecast& stage : stages) {
        for (double* part :
             {&stage.cost.forward, &stage.cost.backward_input, &stage.cost.backward_weight}) {
          *part = 0.1 + static_cast<double>(random.Next() % 1000) / 500;
        }
      }
      EXPECT_LE(LeastOf(pipeline, stages), EndOf(pipeline, stages) * (1 + 1e-12))
          << pipeline.schedule << " " << pipeline.ranks;
    }
  }
}

TEST(LeastPipelineSeconds, IsTheStepOfEqualStagesThatWaitForNothingElse) {
  for (const Pipeline& pipeline : kPipelines) {
    if (pipeline.chunks > 1 || pipeline.schedule == std::string("zero_bubble")) continue;
    std::vector<StageForecast> stages(static_cast<size_t>(pipeline.ranks));
    for (StageForecast& stage : stages) stage.cost = {1, 1, 1, 0};
    EXPECT_DOUBLE_EQ(LeastOf(pipeline, stages), EndOf(pipeline, stages)) << pipeline.schedule;
  }
}

}  // namespace
}  // namespace weft::planner
