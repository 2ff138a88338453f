#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {

/// How a small mixture of experts is trained, for tests.
struct ExpertWays {
  int64_t ranks = 1;   ///< That see different sequences, ...
  int64_t expert = 1;  ///< ... of which so many share the experts.
  double capacity = 0;
  std::string policy = "keep";
  std::string precision = "fp32";
  int64_t zero_stage = 0;
  std::vector<int64_t> cut = {};  ///< Blocks of each stage of a pipeline.
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  int64_t context = 1;  ///< Ranks that share each sequence.
  std::string method = "ring";
  int64_t tensor = 1;     ///< Ranks that share matrices, and
  bool sequence = false;  ///< tokens between them.
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

/// In ten steps of eight sequences, with a micro-batch of one.
inline MeshCase CaseOf(const ExpertWays& ways, const ModelSpec& model = MixtralModel()) {
  constexpr int64_t kBatch = 8;
  MeshCase c{TinyJob(kBatch), TinyPlan(ways.precision, 1, kBatch / ways.ranks)};
  c.job.model = model;
  c.job.model.expert_capacity = ways.capacity;
  c.job.train.steps = 10;
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
  c.plan.bucket_bytes = 4000;
  c.plan.block_memory_policy.assign(static_cast<size_t>(model.layers), ways.policy);
  return c;
}

inline std::string NameOf(const ExpertWays& ways) {
  std::string name = std::to_string(ways.ranks) + " ranks, experts shared by " +
                     std::to_string(ways.expert) + ", capacity " + std::to_string(ways.capacity) +
                     ", " + ways.policy + ", " + ways.precision + ", zero_stage " +
                     std::to_string(ways.zero_stage);
  if (!ways.cut.empty()) name += ", " + ways.schedule + " of " + std::to_string(ways.cut.size());
  if (ways.context > 1) name += ", " + ways.method + " of " + std::to_string(ways.context);
  if (ways.tensor > 1) {
    name += ", tensor " + std::to_string(ways.tensor) + (ways.sequence ? " with sequence" : "");
  }
  return name;
}

/// The training of `ranks` is that of `whole`, losses to `loss` and norms to their `norms`-th part,
/// the same on all of them; what they save together is its state, each number once.
inline void ExpectFollows(const std::vector<MeshOutcome>& ranks, const MeshOutcome& whole,
                          double loss, double norms) {
  SavedState state;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    const MeshOutcome& own = ranks[rank];
    ASSERT_EQ(own.reports.size(), whole.reports.size());
    for (size_t step = 0; step < whole.reports.size(); ++step) {
      const StepReport &report = own.reports[step], &truth = whole.reports[step];
      EXPECT_NEAR(report.loss, truth.loss, loss) << step;
      EXPECT_NEAR(report.gradient_norm, truth.gradient_norm, norms * truth.gradient_norm) << step;
      EXPECT_EQ(report.loss, ranks[0].reports[step].loss) << "the same on all ranks";
      EXPECT_EQ(report.gradient_norm, ranks[0].reports[step].gradient_norm);
      EXPECT_EQ(report.targets, truth.targets);
      EXPECT_EQ(report.skipped, truth.skipped);
      ASSERT_EQ(report.norms.size(), truth.norms.size());
      for (size_t g = 0; g < truth.norms.size(); ++g) {
        EXPECT_EQ(report.norms[g].group, truth.norms[g].group);
        EXPECT_NEAR(report.norms[g].gradient, truth.norms[g].gradient,
                    10 * norms * truth.norms[g].gradient);
        EXPECT_NEAR(report.norms[g].parameter, truth.norms[g].parameter,
                    10 * loss * truth.norms[g].parameter);
      }
    }
    EXPECT_NEAR(own.evaluation, whole.evaluation, loss);
    for (const auto& [name, values] : own.values) {
      for (const MeshOutcome& other : ranks) {
        const auto same = other.values.find(name);
        if (same == other.values.end()) continue;
        if (!SamePart(own.shards.at(name), other.shards.at(name))) continue;
        EXPECT_EQ(values, same->second) << name << " bit for bit wherever it is";
      }
    }
    state.Add(own.state);
  }
  const auto& truth = whole.state.tensors;
  EXPECT_EQ(state.tensors.size(), truth.size()) << "every tensor is saved";
  for (const auto& [name, values] : state.tensors) {
    ASSERT_TRUE(truth.contains(name)) << name;
    EXPECT_EQ(state.saved.at(name), std::ssize(values)) << name << ": each number is saved once";
    EXPECT_LT(Distance(values, truth.at(name)), 1e3 * loss) << name;
  }
}

}  // namespace weft::engine
