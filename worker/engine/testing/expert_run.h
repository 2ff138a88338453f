#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/testing/many_steps.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {

/// How a small mixture of experts is trained, for tests.
struct ExpertWays {
  int64_t ranks = 1;   ///< Data-parallel ranks, ...
  int64_t expert = 1;  ///< ... in expert-parallel groups of this size.
  double capacity = 0;
  std::string policy = "keep";
  std::string precision = "fp32";
  int64_t zero_stage = 0;
  std::vector<int64_t> cut = {};  ///< Blocks of each stage of a pipeline.
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  int64_t context = 1;  ///< Context-parallel ranks.
  std::string method = "ring";
  int64_t tensor = 1;       ///< Tensor-parallel ranks.
  bool sequence = false;    ///< Sequence parallelism.
  int64_t shard_ranks = 0;  ///< Of a shard group of zero_stage; 0: all.
  int64_t bits = 0;         ///< Of what blocks keep.
};

inline ModelSpec MixtralModel() {
  ModelSpec spec = TinyModel();
  spec.family = "llama";
  spec.context = 24;
  spec.kv_heads = 1;
  spec.mlp_width = 48;
  spec.untied_classifier = true;
  spec.experts = 4;
  spec.experts_per_token = 2;
  spec.router_aux_loss = 0.05;
  return spec;
}

/// In steps of eight sequences, with a micro-batch of one.
inline MeshCase CaseOf(const ExpertWays& ways, const ModelSpec& model = MixtralModel()) {
  constexpr int64_t kBatch = 8;
  MeshCase c{TinyJob(kBatch), TinyPlan(ways.precision, 1, kBatch / ways.ranks)};
  c.job.model = model;
  c.job.model.expert_capacity = ways.capacity;
  c.job.train.steps = kManyTrainedSteps;
  c.job.train.precision = ways.precision;
  c.job.train.eval_sequences = 11;
  c.job.train.log_every_steps = 3;
  c.job.train.gradient_clip_norm = 0.5;
  c.job.optimizer.learning_rate = 1e-2;
  c.job.resources.context_method = ways.method;
  c.plan.mesh.data = ways.ranks / ways.expert;
  c.plan.mesh.expert = ways.expert;
  c.plan.mesh.context = ways.context;
  c.plan.mesh.tensor = ways.tensor;
  c.plan.sequence_parallel = ways.sequence;
  if (!ways.cut.empty()) {
    c.plan.mesh.pipeline = std::ssize(ways.cut) / ways.chunks;
    c.plan.pipeline_schedule = ways.schedule;
    c.plan.pipeline_chunks = ways.chunks;
    c.plan.stage_blocks = ways.cut;
  }
  c.plan.zero_stage = ways.zero_stage;
  c.plan.zero_shard_ranks = ways.shard_ranks;
  c.plan.bucket_bytes = 4000;
  c.plan.activation_bits = ways.bits;
  c.plan.block_memory_policy.assign(static_cast<size_t>(model.layers), ways.policy);
  return c;
}

inline std::string NameOf(const ExpertWays& ways) {
  std::string name = std::to_string(ways.ranks) + " ranks, expert parallelism of " +
                     std::to_string(ways.expert) + ", capacity " + std::to_string(ways.capacity) +
                     ", " + ways.policy + ", " + ways.precision + ", zero_stage " +
                     std::to_string(ways.zero_stage);
  if (ways.shard_ranks > 0) name += " in groups of " + std::to_string(ways.shard_ranks);
  if (!ways.cut.empty()) name += ", " + ways.schedule + " of " + std::to_string(ways.cut.size());
  if (ways.bits > 0) name += ", in " + std::to_string(ways.bits);
  if (ways.context > 1) name += ", " + ways.method + " of " + std::to_string(ways.context);
  if (ways.tensor > 1) {
    name += ", tensor " + std::to_string(ways.tensor) + (ways.sequence ? " with sequence" : "");
  }
  return name;
}

}  // namespace weft::engine
