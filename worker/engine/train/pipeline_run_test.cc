// When the executor of pipelines does what, against the formulas of the schedules.
#include "worker/engine/train/pipeline_run.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "worker/engine/testing/sleeping_pipeline.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;

TEST(PipelineRun, WaitsAsLongAsItsScheduleSays) {
  const double p = 4, m = 8;
  struct Case {
    std::string schedule;
    int64_t chunks;
    milliseconds pass;  ///< Forward, and each half of backward.
    double waits;       ///< Of a rank, in such passes of all its stages.
  };
  for (const Case& c : {Case{"gpipe", 1, milliseconds(20), 3 * (p - 1)},
                        {"1f1b", 1, milliseconds(20), 3 * (p - 1)},
                        {"interleaved", 2, milliseconds(10), 3 * (p - 1) / 2},
                        {"zero_bubble", 1, milliseconds(20), p - 1}}) {
    SCOPED_TRACE(c.schedule);
    SleepingPipeline pipeline{.schedule = c.schedule,
                              .ranks = static_cast<int64_t>(p),
                              .chunks = c.chunks,
                              .micro_batches = static_cast<int64_t>(m)};
    const double theory = c.waits / (3 * m + c.waits);
    double closest = 1;
    // Others may take the cores meanwhile: one of several steps will do, whose passes get longer.
    for (int attempt = 1; attempt <= 10 && std::fabs(closest - theory) > 0.1 * theory; ++attempt) {
      const milliseconds pass = c.pass * attempt;
      pipeline.times = {pass, pass, pass};
      const double bubble = Execute(pipeline, 1).front().BubbleFraction();
      if (std::fabs(bubble - theory) < std::fabs(closest - theory)) closest = bubble;
    }
    EXPECT_NEAR(closest, theory, 0.1 * theory);
  }
}

}  // namespace
}  // namespace weft::engine
