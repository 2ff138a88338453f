#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "common/spec/phases.h"
#include "common/spec/testing.h"

namespace weft::phases {

inline PhaseSpec Phase(int64_t steps, const std::string& method = "none") {
  PhaseSpec phase;
  phase.steps = steps;
  phase.growth.method = method;
  return phase;
}

/// Large, half in all sizes, and large again.
inline JobSpec VCycle() {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(300, "coalesce"), Phase(200, "decoalesce")};
  job.phases[1].layers = 3;
  job.phases[1].width = 192;
  return job;
}

/// Few blocks, then all.
inline JobSpec Stack(int64_t layers) {
  JobSpec job = GoodJob();
  job.schedule.warmup_steps = 10;
  job.phases = {Phase(100), Phase(200, "stack")};
  job.phases[0].layers = layers;
  return job;
}

/// Why that job is not valid after a change.
inline std::string Error(JobSpec job, const std::function<void(JobSpec&)>& change) {
  change(job);
  const Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

}  // namespace weft::phases
