#include "common/spec/growth_fit.h"

#include <gtest/gtest.h>

#include "common/spec/phases.h"
#include "common/spec/testing.h"

namespace weft {
namespace {

/// Learns to grow from half the width, and from half the layers.
JobSpec Learned() {
  JobSpec job = GoodJob();
  job.model.layers = 4;
  job.model.width = 64;
  job.model.heads = 4;
  job.model.vocab_size = 128;
  job.model.context = 16;
  job.schedule.warmup_steps = 0;
  job.phases.resize(2);
  job.phases[0].steps = job.phases[1].steps = 50;
  job.phases[0].width = 32;
  job.phases[0].layers = 2;
  job.phases[1].growth.method = "ligo";
  job.phases[1].growth.fit_steps = 10;
  return job;
}

TEST(GrowthFit, CountsItsStepsAndTheProductsOfTheOperator) {
  const JobSpec job = Learned();
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  // Products of a GPT-2 of old width d with a tensor's rows and columns, by kind of tensor.
  constexpr double d = 32;
  const double attention = (12 + 24) * d * d * d + (4 + 8) * d * d * d;
  const double mlp = (64 + 32) * d * d * d + (16 + 128) * d * d * d;
  const double norms = 4 * 4 * d * d, biases = (12 + 4 + 64 + 4) * d * d;
  const double tables = 4 * (128 + 16) * d * d, last_norm = 2 * 4 * d * d;
  const double products = 4 * (attention + mlp + norms + biases) + tables + last_norm;
  const double steps = 10 * StepFlops(JobOfPhase(job, 1));
  EXPECT_NEAR(GrowthFitFlops(job, 1), steps + (4 * 10 + 1) * products, 1e-9 * steps);
}

TEST(GrowthFit, SidesThatStayHaveNoProducts) {
  JobSpec job = Learned();
  job.phases[0].width = 0;
  EXPECT_EQ(GrowthFitFlops(job, 1), 10 * StepFlops(JobOfPhase(job, 1)));
  job = Learned();
  job.phases[0].layers = -1;
  EXPECT_EQ(GrowthFitFlops(job, 1), GrowthFitFlops(Learned(), 1)) << "mixing blocks is no product";
}

TEST(GrowthFit, OtherPhasesLearnNothing) {
  JobSpec job = Learned();
  EXPECT_EQ(GrowthFitFlops(job, 0), 0);
  job.phases[1].growth.method = "fpi";
  EXPECT_EQ(GrowthFitFlops(job, 1), 0);
}

}  // namespace
}  // namespace weft
