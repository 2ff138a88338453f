#pragma once

#include <string>

#include "common/spec/job_spec.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {

inline constexpr int64_t kPrunedBatch = 8;
inline constexpr int64_t kPruningInterval = 2;

inline PruningSpec PruningBy(const std::string& method, double density = 0.3,
                             const std::string& distribution = "uniform") {
  PruningSpec spec;
  spec.method = method;
  spec.density = density;
  spec.distribution = distribution;
  spec.interval = kPruningInterval;
  spec.drop_rate = 0.4;
  spec.rounds = 10;
  return spec;
}

inline JobSpec PrunedJob(const PruningSpec& spec) {
  JobSpec job = TinyJob(kPrunedBatch);
  job.train.pruning = spec;
  job.train.steps = 40;
  job.optimizer.weight_decay = 0.1;
  return job;
}

}  // namespace weft::engine
