#include "common/spec/pipeline_parallel.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(ValidateJob, RefusesPipelinesThatCannotRun) {
  const auto staged = [](JobSpec& job) {
    job.model.layers = 4;
    job.train.global_batch = 16;
    job.resources.ranks = 4;
    job.resources.micro_batch = 1;
    job.resources.pipeline_parallel = 2;
  };
  const auto error = [&](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      staged(job);
      change(job);
    });
  };
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    EXPECT_TRUE(Accepts([&](JobSpec& job) {
      staged(job);
      job.resources.pipeline_schedule = schedule;
    }));
  }
  const auto interleaved = [](JobSpec& job) {
    job.resources.pipeline_schedule = "interleaved";
    job.resources.pipeline_chunks = 2;
  };
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    staged(job);
    interleaved(job);
  }));
  EXPECT_THAT(error([&](JobSpec& job) {
                interleaved(job);
                job.train.global_batch = 6;
              }),
              HasSubstr("a multiple of 2 micro-batches in every step, not 3"));
  EXPECT_THAT(error([&](JobSpec& job) {
                interleaved(job);
                job.model.layers = 3;
              }),
              HasSubstr("makes 4 stages, and each needs a block: model.layers is 3"));
  EXPECT_THAT(
      error([](JobSpec& job) { job.resources.pipeline_chunks = 2; }),
      HasSubstr("resources.pipeline_schedule 1f1b cannot have resources.pipeline_chunks 2"));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.ranks = 3; }),
              HasSubstr("must be a multiple of resources.pipeline_parallel 2"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    staged(job);
    job.model.freeze = {"*.wte.*", "*.h.0.*"};
  }));
  EXPECT_THAT(error([](JobSpec& job) { job.model.distinct_blocks = 2; }),
              HasSubstr("model.distinct_blocks"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    staged(job);
    job.resources.zero_stage = 1;
  }));
  EXPECT_THAT(
      error([](JobSpec& job) { job.resources.zero_stage = 2; }),
      HasSubstr("does not go with resources.zero_stage 2, because ZeRO reduces the gradients"));
  for (const char* recompute : {"none", "attention", "block", "auto", "optimal"}) {
    EXPECT_TRUE(Accepts([&](JobSpec& job) {
      staged(job);
      job.resources.recompute = recompute;
    }));
  }
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    staged(job);
    job.resources.recompute = "block";
    job.resources.recompute_segment = 2;
  }));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.recompute = "block";
                job.resources.recompute_segment = 2;
                job.resources.activation_bits = 4;
              }),
              HasSubstr("recompute_segment 2 and activation_bits together"));
  for (const auto& [with, said] :
       {std::pair<std::function<void(ResourceSpec&)>, const char*>(
            [](ResourceSpec& resources) { resources.activation_bits = 4; },
            "recompute optimal and activation_bits together"),
        {[](ResourceSpec& resources) { resources.offload_activations = "host"; },
         "recompute optimal and offload_activations together"}}) {
    EXPECT_THAT(error([&](JobSpec& job) {
                  job.resources.recompute = "optimal";
                  with(job.resources);
                }),
                HasSubstr(said));
  }
  EXPECT_THAT(error([](JobSpec& job) { job.train.gradient_noise_scale = true; }),
              HasSubstr("train.gradient_noise_scale"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.pipeline_schedule = "gpipe"; }),
              HasSubstr("hint: resources.pipeline_parallel"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.pipeline_chunks = 2; }),
              HasSubstr("hint: resources.pipeline_parallel"));
}

}  // namespace
}  // namespace weft
