#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_shape.h"
#include "worker/engine/testing/many_steps.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {

inline ModelSpec Gpt2Model() {
  ModelSpec spec = TinyModel();
  spec.context = 24;
  spec.heads = 4;
  return spec;
}

/// Grouped queries, rotary positions, no biases.
inline ModelSpec LlamaModel() {
  ModelSpec spec = Gpt2Model();
  spec.family = "llama";
  spec.width = 64;
  spec.heads = 8;
  spec.kv_heads = 2;
  spec.mlp_width = 48;
  spec.untied_classifier = true;
  return spec;
}

/// `context` context-parallel ranks, in steps of four sequences.
inline MeshCase CaseOf(const ModelSpec& model, const std::string& method, int64_t context,
                       int64_t data = 1, const std::string& policy = "keep",
                       const std::string& precision = "fp32") {
  MeshCase c{TinyJob(4), TinyPlan(precision, 2, 2 / data)};
  c.job.model = model;
  c.job.train.steps = kManyTrainedSteps;
  c.job.train.precision = precision;
  c.job.train.eval_sequences = 9;
  c.job.train.log_every_steps = 3;
  c.job.train.gradient_clip_norm = 0.5;
  c.job.optimizer.learning_rate = 1e-2;
  c.job.resources.context_method = method;
  c.plan.mesh.data = data;
  c.plan.mesh.context = context;
  c.plan.bucket_bytes = 4000;
  c.plan.block_memory_policy.assign(static_cast<size_t>(model.layers), policy);
  return c;
}

/// The same with this many ranks for each sequence.
inline MeshCase WithContext(MeshCase c, int64_t ranks, const std::string& method = "ring") {
  c.plan.mesh.context = ranks;
  c.plan.context_method = c.job.resources.context_method = method;
  return c;
}

/// The same with a ZeRO stage, whose shard group is all ranks or `groups_of`.
inline MeshCase WithZero(MeshCase c, int64_t stage, int64_t groups_of = 0) {
  c.plan.zero_stage = stage;
  c.plan.zero_shard_ranks = groups_of;
  return c;
}

/// The same with this many ranks for each matrix.
inline MeshCase WithTensor(MeshCase c, int64_t ranks, bool sequence = false) {
  c.plan.mesh.tensor = ranks;
  c.plan.sequence_parallel = sequence;
  return c;
}

/// The same with blocks in stages, `chunks` on each rank of a pipeline.
inline MeshCase WithStages(MeshCase c, const std::vector<int64_t>& cut, const std::string& schedule,
                           int64_t chunks = 1) {
  c.plan.mesh.pipeline = std::ssize(cut) / chunks;
  c.plan.pipeline_schedule = schedule;
  c.plan.pipeline_chunks = chunks;
  c.plan.stage_blocks = cut;
  return c;
}

/// The same with 2-D tensor parallelism of this many rows and columns.
inline MeshCase WithGrid(MeshCase c, int64_t rows, int64_t columns) {
  c.plan.mesh.tensor = rows * columns;
  c.plan.tensor_rows = rows;
  return c;
}

/// The same that keeps what blocks save in this many bits.
inline MeshCase WithBits(MeshCase c, int64_t bits) {
  c.plan.activation_bits = bits;
  return c;
}

inline std::string NameOf(const MeshCase& c) {
  const Mesh& mesh = c.plan.mesh;
  std::string name = c.job.model.family + ", " + c.job.resources.context_method + " of " +
                     std::to_string(mesh.context) + ", data " + std::to_string(mesh.data) + ", " +
                     c.plan.block_memory_policy[0] + ", " + c.plan.precision;
  if (c.plan.zero_stage > 0) name += ", zero_stage " + std::to_string(c.plan.zero_stage);
  if (c.plan.activation_bits > 0) name += ", in " + std::to_string(c.plan.activation_bits);
  if (mesh.tensor > 1) name += ", tensor " + std::to_string(mesh.tensor);
  if (c.plan.tensor_rows > 1) name += " in " + std::to_string(c.plan.tensor_rows) + " rows";
  if (c.plan.sequence_parallel) name += " with sequence";
  if (mesh.pipeline > 1) {
    name += ", " + c.plan.pipeline_schedule + " of " + std::to_string(mesh.pipeline);
  }
  return name;
}

/// What the memory of one of its ranks depends on, as if it had all blocks.
inline MemoryInputs InputsOf(const MeshCase& c) {
  Plan plan = c.plan;
  plan.context_method = c.job.resources.context_method;
  return MemoryInputsOf(c.job, plan, {ProductsOf(PrecisionOf(plan.precision).products)});
}

/// PredictMemory as the allocator counts it, where operands that are widened for one product are
/// the kernels' own.
inline MemoryBreakdown CountedMemory(MemoryInputs inputs) {
  MemoryBreakdown predicted = PredictMemory(inputs);
  inputs.products = ProductKind::kNative;
  predicted.workspace_bytes = PredictMemory(inputs).workspace_bytes;
  return predicted;
}

}  // namespace weft::engine
