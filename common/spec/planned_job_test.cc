#include "common/spec/planned_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_json.h"
#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(PlannedJob, AsksForWhatThePlanChose) {
  JobSpec job = GoodJob();
  job.train.precision = "auto";
  job.train.fp8.history = 32;  // of a precision that was not chosen
  job.resources.offload_optimizer = "auto";
  Plan plan;
  plan.mesh = {.data = 2, .tensor = 4, .pipeline = 2, .context = 2};
  plan.tensor_rows = 2;
  plan.pipeline_schedule = "interleaved";
  plan.pipeline_chunks = 2;
  plan.zero_stage = 1;
  plan.offload_optimizer = "host";
  plan.delayed_update = true;
  plan.activation_bits = 4;
  plan.gradient_reduction = "bf16";
  plan.recompute_schedule = {"F_all 0"};
  plan.precision = "fp16";
  const JobSpec planned = JobAsPlanned(job, plan);
  const ResourceSpec& resources = planned.resources;
  EXPECT_EQ(planned.train.fp8, Fp8Spec());
  EXPECT_EQ(resources.ranks, 32);
  EXPECT_EQ(resources.tensor_parallel, 4);
  EXPECT_EQ(resources.tensor_rows, 2);
  EXPECT_EQ(resources.context_parallel, 2);
  EXPECT_EQ(resources.pipeline_parallel, 2);
  EXPECT_EQ(resources.pipeline_schedule, "interleaved");
  EXPECT_EQ(resources.pipeline_chunks, 2);
  EXPECT_EQ(resources.zero_stage, 1);
  EXPECT_EQ(resources.offload_optimizer, "host");
  EXPECT_TRUE(resources.delayed_update);
  EXPECT_EQ(resources.activation_bits, 4);
  EXPECT_EQ(resources.gradient_reduction, "bf16");
  EXPECT_EQ(resources.recompute, "optimal");
  EXPECT_EQ(planned.train.precision, "fp16");
  EXPECT_EQ(ToJson(planned.optimizer), ToJson(job.optimizer));
}

TEST(PlannedJob, RefusesPlansOfWhatDoesNotGoTogether) {
  JobSpec job = GoodJob();
  Plan plan;
  EXPECT_TRUE(CheckPlanCompatibility(job, plan).ok());
  plan.mesh.pipeline = 2;
  plan.zero_stage = 2;
  const Status refused = CheckPlanCompatibility(job, plan);
  EXPECT_EQ(refused.code(), StatusCode::kInvalid);
  EXPECT_THAT(refused.message(),
              StartsWith("the plan: resources.pipeline_parallel 2 does not go with "
                         "resources.zero_stage 2, because"));
  plan = {};
  plan.device = "cuda";
  plan.device_memory_bytes = 1 << 30;
  EXPECT_THAT(CheckPlanCompatibility(job, plan).message(), HasSubstr("resources.device cuda"));
  // The model of an import is known when there is a plan.
  plan = {};
  plan.mesh.context = 2;
  job.model.import_path = "folder";
  job.model.family = "llama";
  EXPECT_TRUE(CheckPlanCompatibility(job, plan).ok());
  job.model.sliding_window = 64;
  EXPECT_THAT(CheckPlanCompatibility(job, plan).message(), HasSubstr("model.sliding_window 64"));
}

}  // namespace
}  // namespace weft
