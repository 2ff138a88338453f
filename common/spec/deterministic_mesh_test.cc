#include "common/spec/deterministic_mesh.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

JobSpec MeshJob() {
  JobSpec job = GoodJob();
  job.train.deterministic = "mesh";
  job.train.global_batch = 16;
  job.resources.threads_per_rank = 2;
  return job;
}

TEST(DeterministicMesh, TakesAPowerOfTwoOfMicroBatchesOnAPowerOfTwoOfRanks) {
  JobSpec job = MeshJob();
  EXPECT_EQ(LogicalMicroBatch(job.train), 1);
  for (const int64_t ranks : {0, 1, 2, 4, 8, 16}) {
    job.resources.ranks = ranks;
    EXPECT_TRUE(ValidateJob(job).ok()) << ranks << ": " << ValidateJob(job).message();
  }
  job.train.global_batch = 24;
  job.resources.ranks = 4;
  job.train.logical_micro_batch = 3;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.resources.pipeline_parallel = 2;
  job.model.untied_classifier = true;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
}

TEST(DeterministicMesh, NamesASizeThatWouldDo) {
  JobSpec job = MeshJob();
  job.train.global_batch = 24;
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("hint: train.logical_micro_batch 3"));
  job.train.logical_micro_batch = 16;
  EXPECT_THAT(ValidateJob(job).message(),
              HasSubstr("train.global_batch 24 must be a power of two times "
                        "train.logical_micro_batch 16"));
}

TEST(DeterministicMesh, RefusesOtherMicroBatchesAndUnevenRanks) {
  JobSpec job = MeshJob();
  job.resources.micro_batch = 2;
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("resources.micro_batch 2 is not"));
  job.train.logical_micro_batch = 2;
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.resources.micro_batch = 0;
  job.resources.ranks = 16;
  EXPECT_THAT(ValidateJob(job).message(),
              HasSubstr("8 micro-batches of train.global_batch 16, of train.logical_micro_batch 2 "
                        "sequences each, are not shared evenly by 16"));
}

TEST(DeterministicMesh, WantsToKnowTheThreads) {
  JobSpec job = MeshJob();
  job.resources.threads_per_rank = 0;
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("needs resources.threads_per_rank"));
}

TEST(DeterministicMesh, AMicroBatchWithoutItIsRefused) {
  JobSpec job = GoodJob();
  job.train.logical_micro_batch = 2;
  EXPECT_THAT(ValidateJob(job).message(), HasSubstr("is of train.deterministic mesh, not run"));
}

}  // namespace
}  // namespace weft
