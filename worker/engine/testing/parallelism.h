#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/spec/plan.h"

namespace weft::engine {

/// How a training is partitioned over ranks and what they recompute, for tests that compare it with
/// that of one rank. The members are named as those of Mesh and Plan.
struct Parallelism {
  int64_t data = 1;
  int64_t zero_stage = 0;
  int64_t zero_shard_ranks = 0;
  int64_t tensor = 1;
  bool sequence_parallel = false;
  int64_t pipeline = 1;
  std::string pipeline_schedule = "1f1b";
  int64_t pipeline_chunks = 1;
  int64_t context = 1;
  int64_t expert = 1;
  std::vector<std::string> block_memory_policy = {};

  /// Turns a plan of one rank into this one's, which has as many sequences in a step, in
  /// micro-batches of the same size. `layers`: those of the network; each stage has as many.
  void ApplyTo(Plan& plan, int64_t layers) const {
    WEFT_CHECK(RankCount(plan.mesh) == 1, "a plan of one rank");
    plan.mesh = {data, tensor, pipeline, context, expert};
    WEFT_CHECK(plan.accumulation_steps % (data * expert) == 0, "as many micro-batches a rank");
    plan.accumulation_steps /= data * expert;
    plan.zero_stage = zero_stage;
    plan.zero_shard_ranks = zero_shard_ranks;
    plan.sequence_parallel = sequence_parallel;
    plan.pipeline_schedule = pipeline_schedule;
    plan.pipeline_chunks = pipeline_chunks;
    plan.stage_blocks = {};
    if (const int64_t stages = pipeline * pipeline_chunks; stages > 1) {
      WEFT_CHECK(layers % stages == 0, "as many blocks a stage");
      plan.stage_blocks.assign(static_cast<size_t>(stages), layers / stages);
    }
    plan.block_memory_policy = block_memory_policy;
  }

  /// For SCOPED_TRACE: "data 2, ZeRO 3, tensor 2, sequence parallel".
  std::string Description() const {
    std::string text;
    const auto add = [&](const std::string& words) { text += (text.empty() ? "" : ", ") + words; };
    const auto add_number = [&](const std::string& name, int64_t value, int64_t none) {
      if (value != none) add(name + " " + std::to_string(value));
    };
    add_number("data", data, 1);
    add_number("ZeRO", zero_stage, 0);
    add_number("shard groups of", zero_shard_ranks, 0);
    add_number("tensor", tensor, 1);
    if (sequence_parallel) add("sequence parallel");
    add_number("pipeline", pipeline, 1);
    if (pipeline > 1) add(pipeline_schedule);
    add_number("chunks a rank:", pipeline_chunks, 1);
    add_number("context", context, 1);
    add_number("expert", expert, 1);
    for (const std::string& policy : block_memory_policy) add("block memory " + policy);
    return text.empty() ? "one rank" : text;
  }
};

}  // namespace weft::engine
