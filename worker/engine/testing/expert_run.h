#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/testing/many_steps.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {

/// How a small mixture of experts is trained, for tests.
struct ExpertRunConfig {
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
inline MeshCase CaseOf(const ExpertRunConfig& config, const ModelSpec& model = MixtralModel()) {
  constexpr int64_t kBatch = 8;
  MeshCase c{TinyJob(kBatch), TinyPlan(config.precision, 1, kBatch / config.ranks)};
  c.job.model = model;
  c.job.model.expert_capacity = config.capacity;
  c.job.train.steps = kManyTrainedSteps;
  c.job.train.precision = config.precision;
  c.job.train.eval_sequences = 11;
  c.job.train.log_every_steps = 3;
  c.job.train.gradient_clip_norm = 0.5;
  c.job.optimizer.learning_rate = 1e-2;
  c.job.resources.context_method = config.method;
  c.plan.mesh.data = config.ranks / config.expert;
  c.plan.mesh.expert = config.expert;
  c.plan.mesh.context = config.context;
  c.plan.mesh.tensor = config.tensor;
  c.plan.sequence_parallel = config.sequence;
  if (!config.cut.empty()) {
    c.plan.mesh.pipeline = std::ssize(config.cut) / config.chunks;
    c.plan.pipeline_schedule = config.schedule;
    c.plan.pipeline_chunks = config.chunks;
    c.plan.stage_blocks = config.cut;
  }
  c.plan.zero_stage = config.zero_stage;
  c.plan.zero_shard_ranks = config.shard_ranks;
  c.plan.bucket_bytes = 4000;
  c.plan.activation_bits = config.bits;
  c.plan.block_memory_policy.assign(static_cast<size_t>(model.layers), config.policy);
  return c;
}

inline std::string NameOf(const ExpertRunConfig& config) {
  std::string name = std::to_string(config.ranks) + " ranks, expert parallelism of " +
                     std::to_string(config.expert) + ", capacity " +
                     std::to_string(config.capacity) + ", " + config.policy + ", " +
                     config.precision + ", zero_stage " + std::to_string(config.zero_stage);
  if (config.shard_ranks > 0) name += " in groups of " + std::to_string(config.shard_ranks);
  if (!config.cut.empty())
    name += ", " + config.schedule + " of " + std::to_string(config.cut.size());
  if (config.bits > 0) name += ", in " + std::to_string(config.bits);
  if (config.context > 1) name += ", " + config.method + " of " + std::to_string(config.context);
  if (config.tensor > 1) {
    name += ", tensor " + std::to_string(config.tensor) + (config.sequence ? " with sequence" : "");
  }
  return name;
}

}  // namespace weft::engine
