#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

// For tests of ValidateJob.

inline JobSpec GoodJob() {
  JobSpec job;
  job.name = "tiny";
  job.data.train = {"a.txt"};
  return job;
}

/// Why the good job is not valid after a change.
inline std::string ErrorAfter(const std::function<void(JobSpec&)>& change) {
  JobSpec job = GoodJob();
  change(job);
  Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

/// Whether it is.
inline bool Accepts(const std::function<void(JobSpec&)>& change) {
  JobSpec job = GoodJob();
  change(job);
  return ValidateJob(job).ok();
}

}  // namespace weft
