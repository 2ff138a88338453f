#pragma once

#include <string>

#include "common/spec/job_spec.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {

/// Prunes the heads of a llama, which share keys and values in twos; of others the neurons alone.
inline JobSpec SearchJob(const std::string& family) {
  JobSpec job = TinyJob(4);
  job.model.family = family;
  StructuredPruningSpec& spec = job.model.structured_pruning;
  spec.method = "early_bird";
  spec.interval = 2;
  if (family == "llama") {
    job.model.heads = 4;
    job.model.kv_heads = 2;
    spec.head_density = 0.5;
  }
  return job;
}

}  // namespace weft::engine
