#include "common/spec/context_parallel.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

/// Four ranks, two of them for each sequence of 256 tokens.
JobSpec GoodJob() {
  JobSpec job;
  job.name = "tiny";
  job.data.train = {"a.txt"};
  job.resources.ranks = 4;
  job.resources.context_parallel = 2;
  return job;
}

std::string ErrorAfter(const std::function<void(JobSpec&)>& change) {
  JobSpec job = GoodJob();
  change(job);
  const Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

TEST(ContextParallelSpec, TakesBothMethods) {
  JobSpec job = GoodJob();
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.resources.context_method = "ulysses";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.resources.device = "cuda";
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.resources.ranks = 8;
  job.resources.tensor_parallel = 2;
  job.resources.sequence_parallel = true;
  job.model.heads = 4;
  job.resources.zero_stage = 3;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.resources.zero_stage = 1;
  job.resources.pipeline_parallel = 2;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  // More ranks than heads of keys, whose multiple they are.
  job = GoodJob();
  job.resources.context_method = "ulysses";
  job.model.family = "llama";
  job.model.heads = 8;
  job.model.kv_heads = 2;
  job.resources.context_parallel = 4;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(ContextParallelSpec, RefusesWhatCannotBeShared) {
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.train.sequence_length = 254; }),
              HasSubstr("4 equal chunks, two a rank, and its length is 254; hint: "
                        "train.sequence_length 252"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.resources.ranks = 3; }),
              HasSubstr("must be a multiple of resources.context_parallel 2"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.train.global_batch = 33; }),
              HasSubstr("over resources.context_parallel 2"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.context_parallel = 4;
                job.resources.context_method = "ulysses";
              }),
              HasSubstr("partitions heads over 4 ranks, and model.heads is 6; hint: ring"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.tensor_parallel = 2;
                job.resources.context_method = "ulysses";
              }),
              HasSubstr("model.heads is 6 over tensor_parallel 2; hint: ring"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.tensor_parallel = 2;
                job.resources.sequence_parallel = true;
                job.resources.context_parallel = 3;
                job.resources.ranks = 6;
                job.train.sequence_length = 250;
              }),
              HasSubstr("a length that is a multiple of 6"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.resources.context_parallel = 1;
                job.resources.context_method = "ulysses";
              }),
              HasSubstr("there is one; hint: resources.context_parallel"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.model.family = "llama";
                job.model.sliding_window = 64;
              }),
              HasSubstr("does not go with model.sliding_window 64"));
}

TEST(ContextParallelSpec, NamesWhatItDoesNotGoWith) {
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.data.batching = "best_fit"; }),
              HasSubstr("data.batching"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.data.mask_documents = true; }),
              HasSubstr("data.mask_documents"));
}

}  // namespace
}  // namespace weft
