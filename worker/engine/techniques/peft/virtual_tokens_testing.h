#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/testing/tiny_run.h"

// Small trainings of virtual tokens before those of a gpt2 or llama.

namespace weft::engine {

inline constexpr int64_t kVirtual = 4;
inline constexpr int64_t kLength = 12;

struct Method {
  const char* name;
  std::function<void(PeftSpec& spec)> change;
};

inline std::vector<Method> Methods() {
  return {{"prompt", [](PeftSpec& spec) { spec.method = "prompt"; }},
          {"p_tuning",
           [](PeftSpec& spec) {
             spec.method = "p_tuning";
             spec.encoder_hidden_size = 24;
           }},
          {"prefix", [](PeftSpec& spec) { spec.method = "prefix"; }},
          {"prefix with a projection", [](PeftSpec& spec) {
             spec.method = "prefix";
             spec.prefix_projection = true;
             spec.encoder_hidden_size = 24;
           }}};
}

/// Of a mistral the window leaves the first virtual tokens behind.
inline constexpr const char* kFamilies[] = {"gpt2", "llama", "mistral", "mixtral"};

inline JobSpec JobOf(const Method& method, const std::string& family = "gpt2") {
  JobSpec job = TinyJob(4);
  job.resources.device = "cpu";
  job.model.family = family == "gpt2" ? "gpt2" : "llama";
  if (family != "gpt2") job.model.kv_heads = 1;
  if (family == "mistral") job.model.sliding_window = 5;
  if (family == "mixtral") {
    job.model.experts = 4;
    job.model.experts_per_token = 2;
  }
  method.change(job.model.peft);
  job.model.peft.num_virtual_tokens = kVirtual;
  job.train.sequence_length = kLength;
  job.optimizer.learning_rate = 1e-2;
  job.train.eval_sequences = 8;
  return job;
}

}  // namespace weft::engine
