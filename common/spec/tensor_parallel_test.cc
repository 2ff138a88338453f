#include "common/spec/tensor_parallel.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(ValidateJob, RefusesMatricesThatRanksCannotShare) {
  const auto shared = [](JobSpec& job) {
    job.model.family = "llama";
    job.model.width = 64;
    job.model.heads = 8;
    job.model.kv_heads = 4;
    job.model.mlp_width = 96;
    job.train.global_batch = 8;
    job.resources.ranks = 8;
    job.resources.tensor_parallel = 4;
  };
  const auto error = [&](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      shared(job);
      change(job);
    });
  };
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    shared(job);
    job.resources.sequence_parallel = true;
  }));
  EXPECT_THAT(error([](JobSpec& job) { job.model.kv_heads = 2; }),
              HasSubstr("model.kv_heads in equal parts, and it is 2; hint: a degree of 2"));
  EXPECT_THAT(error([](JobSpec& job) { job.model.mlp_width = 90; }),
              HasSubstr("the width of the MLP in equal parts, and it is 90; hint: a degree of 3"));
  EXPECT_THAT(error([](JobSpec& job) { job.model.heads = job.model.kv_heads = 2; }),
              HasSubstr("model.heads in equal parts"));
  EXPECT_THAT(error([](JobSpec& job) { job.model.vocab_size = 3; }), HasSubstr("a token for each"));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.ranks = 6; }),
              HasSubstr("must be a multiple of resources.tensor_parallel 4"));
  EXPECT_THAT(error([](JobSpec& job) { job.train.global_batch = 7; }),
              HasSubstr("over resources.tensor_parallel 4"));
  EXPECT_THAT(error([](JobSpec& job) { job.optimizer.name = "muon"; }),
              HasSubstr("does not go with optimizer.name muon"));
  EXPECT_THAT(error([](JobSpec& job) { job.train.precision = "bf16_pure"; }),
              HasSubstr("does not go with train.precision bf16_pure"));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    shared(job);
    job.resources.zero_stage = 3;
  }));
  EXPECT_THAT(error([](JobSpec& job) { job.train.gradient_noise_scale = true; }),
              HasSubstr("train.gradient_noise_scale"));
  EXPECT_THAT(
      error([](JobSpec& job) { job.model.over_parameterization.kind = "linear_expansion"; }),
      HasSubstr("model.over_parameterization"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.resources.sequence_parallel = true;
                job.train.sequence_length = 30;
              }),
              HasSubstr("a length that is a multiple of 4"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.sequence_parallel = true; }),
              HasSubstr("hint: resources.tensor_parallel"));
}

// Rows of a micro-batch are as long as the longest, in steps of 8 tokens.
TEST(ValidateJob, RefusesSequenceParallelismThatPaddedRowsCannotBePartitionedOver) {
  const auto asked = [](const std::string& batching, int64_t degree) {
    return [=](JobSpec& job) {
      job.model.heads = 16;
      job.model.width = 256;
      job.data.batching = batching;
      job.resources.ranks = job.resources.tensor_parallel = degree;
      job.resources.sequence_parallel = true;
    };
  };
  for (const std::string batching : {"pad_dynamic", "pad_uniform"}) {
    for (const int64_t degree : {2, 4, 8}) EXPECT_TRUE(Accepts(asked(batching, degree))) << degree;
    EXPECT_THAT(ErrorAfter(asked(batching, 16)),
                HasSubstr("data.batching " + batching + " pads to multiples of 8 tokens"));
  }
  EXPECT_TRUE(Accepts(asked("pad_fixed", 16)));
}

TEST(ValidateJob, RefusesGridsThatCannotBeMade) {
  const auto grid = [](JobSpec& job) {
    job.model.width = 64;
    job.model.heads = 4;
    job.train.global_batch = 8;
    job.resources.device = "cpu";
    job.resources.ranks = 8;
    job.resources.tensor_parallel = 8;
    job.resources.tensor_rows = 2;
  };
  const auto error = [&](const std::function<void(JobSpec&)>& change) {
    return ErrorAfter([&](JobSpec& job) {
      grid(job);
      change(job);
    });
  };
  EXPECT_TRUE(Accepts(grid)) << "heads are divided by the columns alone";
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    grid(job);
    job.resources.device = "cuda";
  }));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    grid(job);
    job.resources.tensor_parallel = 4;
    job.resources.zero_stage = 3;
    job.resources.zero_shard_ranks = 2;
  }));
  EXPECT_TRUE(Accepts([&](JobSpec& job) {
    grid(job);
    job.resources.offload_optimizer = job.resources.offload_parameters = "nvme";
    job.resources.offload_directory = "/x";
    job.resources.offload_activations = "host";
  }));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.tensor_rows = 3; }),
              HasSubstr("must divide resources.tensor_parallel, which is 8"));
  EXPECT_THAT(error([](JobSpec& job) { job.resources.tensor_parallel = 1; }),
              HasSubstr("must divide resources.tensor_parallel, which is 1"));
  EXPECT_THAT(error([](JobSpec& job) { job.model.heads = 2; }),
              HasSubstr("model.heads in equal parts"));
  EXPECT_THAT(error([](JobSpec& job) {
                job.model.width = job.model.heads = 12;
                job.resources.tensor_rows = 8;
              }),
              HasSubstr("needs model.width in equal parts, and it is 12"));
  const std::pair<std::function<void(JobSpec&)>, const char*> others[] = {
      {[](JobSpec& job) { job.model.dropout = 0.1; }, "model.dropout"},
      {[](JobSpec& job) { job.model.embedding_width = 16; }, "model.embedding_width"},
      {[](JobSpec& job) { job.model.initialization.method = "rezero"; },
       "scales residual branches"},
      {[](JobSpec& job) { job.resources.sequence_parallel = true; }, "sequence_parallel"},
      {[](JobSpec& job) { job.train.precision = "fp8"; }, "fp8"},
      {[](JobSpec& job) { job.model.family = "bert"; }, "bert"},
  };
  for (const auto& [change, reason] : others) EXPECT_THAT(error(change), HasSubstr(reason));
}

}  // namespace
}  // namespace weft
