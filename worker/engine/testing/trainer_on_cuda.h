#pragma once

#include <string>

#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "worker/engine/testing/device_run.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {

inline constexpr Device kCpuDevice{};
inline constexpr Device kCudaDevice{DeviceType::kCuda, 0};

/// The steps of a long training. The host execution is slow under a sanitizer, which learns little
/// from more steps.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int64_t kManySteps = 2;
#else
inline constexpr int64_t kManySteps = 20;
#endif

/// Trains on a CUDA device, or is skipped without one.
class TrainerOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::cuda::DeviceCount() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

/// A tiny job that validates and logs norms.
inline JobSpec JobOnCuda(int64_t global_batch = 4) {
  JobSpec job = TinyJob(global_batch);
  job.train.eval_sequences = 4;
  job.train.log_every_steps = 2;
  return job;
}

/// The same of one block, with structured matrices of this kind in place of all of its.
inline JobSpec StructuredJobOnCuda(const std::string& kind, int64_t global_batch) {
  JobSpec job = JobOnCuda(global_batch);
  job.model.layers = 1;
  job.model.width = 64;
  job.model.structured_matrices.kind = kind;
  job.model.structured_matrices.layers = {"*"};
  job.model.structured_matrices.block_size = 16;
  job.model.structured_matrices.density = 1;
  job.model.structured_matrices.low_rank_share = 0.5;
  return job;
}

}  // namespace weft::engine
