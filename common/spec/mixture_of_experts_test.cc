#include "common/spec/mixture_of_experts.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(ValidateJob, RefusesExpertsThatCannotBeTrained) {
  const auto mixed = [](JobSpec& job) {
    job.model.family = "llama";
    job.model.experts = 4;
  };
  const auto error = [&](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      mixed(job);
      change(job);
    });
  };
  EXPECT_TRUE(Accepts(mixed));
  EXPECT_THAT(error([](JobSpec& job) { job.model.family = "gpt2"; }),
              HasSubstr("model.experts 4 does not go with model.family gpt2"));
  EXPECT_THAT(error([](JobSpec& job) { job.model.experts_per_token = 5; }),
              HasSubstr("model.experts_per_token 5 is more than model.experts 4"));
  EXPECT_THAT(error([](JobSpec& job) { job.model.initialization.method = "rezero"; }),
              HasSubstr("model.initialization.method rezero"));
  EXPECT_THAT(
      error([](JobSpec& job) { job.model.over_parameterization.kind = "linear_expansion"; }),
      HasSubstr("model.over_parameterization"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    mixed(job);
    job.train.precision = "fp8";
  }));
  const auto in_parts = [&](JobSpec& job) {
    mixed(job);
    job.model.heads = job.model.kv_heads = 4;
    job.resources.ranks = 4;
    job.resources.tensor_parallel = 2;
  };
  EXPECT_TRUE(Accepts(in_parts));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    in_parts(job);
    job.resources.sequence_parallel = true;
  }));
  EXPECT_THAT(ErrorAfter([&](JobSpec& job) {
                in_parts(job);
                job.resources.tensor_rows = 2;
              }),
              HasSubstr("does not go with model.experts"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    mixed(job);
    job.resources.ranks = 2;
    job.resources.pipeline_parallel = 2;
    job.resources.pipeline_schedule = "zero_bubble";
  }));
  for (const int64_t expert : {1, 2}) {
    EXPECT_TRUE(Accepts([&](JobSpec& job) {
      mixed(job);
      job.resources.ranks = job.train.global_batch = 2;
      job.resources.expert_parallel = expert;
      job.resources.offload_optimizer = job.resources.offload_parameters = "nvme";
      job.resources.offload_directory = "/x";
      job.resources.offload_activations = "host";
    }));
  }
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.expert_capacity = 1.25; }),
              HasSubstr("model.expert_capacity needs model.experts"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.normalize_expert_weights = false; }),
              HasSubstr("model.normalize_expert_weights false needs model.experts"));
}

TEST(RouterWarning, IsOfOneExpertThatCountsWhole) {
  ModelSpec model;
  EXPECT_EQ(RouterWarning(model), "");
  model.experts = 4;
  EXPECT_EQ(RouterWarning(model), "");
  model.experts_per_token = 1;
  EXPECT_THAT(RouterWarning(model), HasSubstr("learns from the balancing loss alone"));
  EXPECT_THAT(RouterWarning(model), HasSubstr("hint: model.normalize_expert_weights: false"));
  model.router_aux_loss = 0;
  EXPECT_THAT(RouterWarning(model), HasSubstr("learns from nothing"));
  model.normalize_expert_weights = false;
  EXPECT_EQ(RouterWarning(model), "");
}

TEST(ValidateJob, RefusesExpertsThatCannotBeShared) {
  const auto shared = [](JobSpec& job) {
    job.model.family = "llama";
    job.model.experts = 6;
    job.train.global_batch = 8;
    job.resources.device = "cpu";
    job.resources.ranks = 4;
    job.resources.expert_parallel = 2;
  };
  const auto error = [&](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      shared(job);
      change(job);
    });
  };
  EXPECT_TRUE(Accepts(shared));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    shared(job);
    job.resources.ranks = 0;  // the planner's choice
  }));
  EXPECT_THAT(error([](JobSpec& job) { job.model.experts = 0; }),
              HasSubstr("resources.expert_parallel 2 partitions the experts of model.experts, and "
                        "the model has none; hint: 1"));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.expert_parallel = 4; }),
              HasSubstr("resources.expert_parallel 4 must divide model.experts 6"));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.ranks = 1; }),
              HasSubstr("resources.expert_parallel 2 must divide resources.ranks 1"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.ranks = 0;
                job.train.global_batch = 9;
              }),
              HasSubstr("resources.expert_parallel 2 must divide train.global_batch 9"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    shared(job);
    job.model.freeze = {"*.layers.0.*", "*.w1.weight", "*.gate.*"};
    job.optimizer.groups.emplace_back().parameters = {"*.experts.5.*"};
  }));
  EXPECT_THAT(error([](JobSpec& job) { job.model.freeze = {"*.layers.1.*.experts.4.w2.*"}; }),
              HasSubstr("names model.layers.1.block_sparse_moe.experts.4.w2.weight and not "
                        "model.layers.1.block_sparse_moe.experts.0.w2.weight"));
  EXPECT_THAT(error([](JobSpec& job) { job.train.gradient_noise_scale = true; }),
              HasSubstr("train.gradient_noise_scale"));
  EXPECT_THAT(error([](JobSpec& job) { job.train.local_steps = 4; }),
              HasSubstr("train.local_steps"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    shared(job);
    job.resources.zero_stage = 1;
    job.resources.zero_shard_ranks = 2;
  }));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.ranks = 12;
                job.train.global_batch = 12;
                job.resources.zero_stage = 1;
                job.resources.zero_shard_ranks = 3;
              }),
              HasSubstr("resources.expert_parallel 2 must divide resources.zero_shard_ranks 3"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.ranks = 8;
                job.resources.context_parallel = 2;
                job.resources.zero_stage = 1;
                job.resources.zero_shard_ranks = 2;
              }),
              HasSubstr("2 x context_parallel 2 must divide resources.zero_shard_ranks 2"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    shared(job);
    job.resources.tensor_parallel = 2;
  }));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.tensor_parallel = 4; }),
              HasSubstr("resources.expert_parallel 2 must divide resources.ranks 4 / "
                        "resources.tensor_parallel 4: expert-parallel ranks are data-parallel"));
  for (const int64_t stage : {1, 2, 3}) {
    EXPECT_TRUE(Accepts([&](JobSpec& job) {
      shared(job);
      job.resources.zero_stage = stage;
    }));
  }
  const auto staged = [&](JobSpec& job) {
    shared(job);
    job.resources.micro_batch = 1;
    job.resources.pipeline_parallel = 2;
  };
  EXPECT_TRUE(Accepts(staged));
  const auto chunked = [&](JobSpec& job) {
    shared(job);
    job.resources.context_parallel = 2;
  };
  EXPECT_TRUE(Accepts(chunked));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    chunked(job);
    job.model.expert_capacity = 1;
    job.resources.activation_bits = 4;
  }));
  EXPECT_THAT(ErrorAfter([&](JobSpec& job) {
                staged(job);
                job.resources.ranks = 2;
              }),
              HasSubstr("resources.expert_parallel 2 must divide resources.ranks 2 / "
                        "resources.pipeline_parallel 2"));
}

}  // namespace
}  // namespace weft
