#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/technique_cost.h"
#include "common/spec/phases.h"
#include "worker/engine/data/joint_batches.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {

inline constexpr double kTolerance = 0.03;
inline constexpr int64_t kTooSmallToMatter = int64_t{1} << 20;

inline ModelSpec SmallModel(int64_t layers, int64_t heads, int64_t vocab_size, int64_t context) {
  ModelSpec model;
  model.layers = layers;
  model.width = 128;
  model.heads = heads;
  model.vocab_size = vocab_size;
  model.context = context;
  return model;
}

inline void ExpectNear(const char* name, int64_t promised, int64_t taken) {
  if (std::max(promised, taken) < kTooSmallToMatter) return;
  EXPECT_NEAR(static_cast<double>(promised) / static_cast<double>(taken), 1.0, kTolerance)
      << name << ": predicted " << promised << ", measured " << taken;
}

inline std::unique_ptr<BatchSource> BatchesFor(const ModelSpec& model) {
  if (model.family == "vit") return std::make_unique<NoiseImages>(model);
  const int64_t length = model.context - VirtualTokensOf(model).Total();
  if (HeadOf(model) == "classification") {
    return std::make_unique<RandomLabelled>(model.vocab_size, length, model.classes);
  }
  if (HeadOf(model) == "masked_lm") {
    return std::make_unique<RandomMasked>(model.vocab_size, length, MaskingSpec().probability);
  }
  std::vector<std::unique_ptr<BatchSource>> sources;
  for (size_t part = 0; part < std::max<size_t>(model.peft.adapters.size(), 1); ++part) {
    sources.push_back(std::make_unique<RandomTokens>(model.vocab_size, length));
  }
  if (sources.size() == 1) return std::move(sources.front());
  return std::make_unique<JointBatches>(std::move(sources), JointBatches::AtEnd::kNone);
}

inline void SetTwoAdapters(ModelSpec& model) {
  model.peft.method = "lora";
  model.peft.target_modules = {"all-linear"};
  model.peft.adapters.resize(2);
  model.peft.adapters[0].name = "one";
  model.peft.adapters[1].name = "two";
}

inline void CheckPrediction(const ModelSpec& model, int64_t micro_batch,
                            const std::string& precision, int64_t recomputed,
                            std::optional<PhaseGrowth> growth = std::nullopt) {
  SCOPED_TRACE(std::to_string(model.layers) + " layers, " + precision + ", " +
               std::to_string(recomputed) + " recomputed");
  JobSpec job = TinyJob(2 * micro_batch);
  job.model = model;
  if (growth) SetPhaseGrowth(*growth, job);
  job.train.eval_sequences = micro_batch;
  const int64_t virtual_tokens = VirtualTokensOf(model).Total();
  if (virtual_tokens > 0) job.train.sequence_length = model.context - virtual_tokens;
  Plan plan = TinyPlan(precision, micro_batch, 2);
  plan.block_memory_policy = BlockPolicies(model.layers, recomputed);
  const auto batches = BatchesFor(model);
  TinyTraining run(job, plan, *batches);
  run.Step();
  const MemoryBreakdown measured = run.Step().peak_memory;

  MemoryInputs inputs = MemoryInputsOf(job, plan, {ProductsOf(PrecisionOf(precision).products)});
  MemoryBreakdown predicted = PredictMemory(inputs);
  // Operands that are widened for one product are the kernels' own, which no allocator counts.
  inputs.products = ProductKind::kNative;
  predicted.workspace_bytes = PredictMemory(inputs).workspace_bytes;
  ExpectNear("parameters", predicted.parameters_bytes, measured.parameters_bytes);
  ExpectNear("gradients", predicted.gradients_bytes, measured.gradients_bytes);
  ExpectNear("optimizer", predicted.optimizer_bytes, measured.optimizer_bytes);
  ExpectNear("activations", predicted.activations_bytes, measured.activations_bytes);
  ExpectNear("workspace", predicted.workspace_bytes, measured.workspace_bytes);

  // An evaluation holds as workspace what a training step saves as activations.
  run.allocator.ResetPeaks();
  ASSERT_TRUE(run.trainer->Evaluate().ok());
  const MemoryBreakdown evaluation = run.allocator.Peaks();
  EXPECT_LE(static_cast<double>(evaluation.workspace_bytes + evaluation.activations_bytes),
            (1 + kTolerance) *
                static_cast<double>(predicted.workspace_bytes + predicted.activations_bytes));
}

/// Peaks of activations alone, which recomputation is about.
inline void CheckActivations(const ModelSpec& model, const std::string& precision,
                             const std::vector<std::string>& policies, int64_t segment,
                             const std::vector<std::string>& schedule = {}, int64_t bits = 0) {
  JobSpec job = TinyJob(2);
  job.model = model;
  Plan plan = TinyPlan(precision, 2, 1);
  plan.block_memory_policy = policies;
  plan.recompute_segment = segment;
  plan.recompute_schedule = schedule;
  plan.activation_bits = bits;
  RandomTokens tokens(model.vocab_size, model.context);
  TinyTraining run(job, plan, tokens);
  run.Step();
  const MemoryInputs inputs = MemoryInputsOf(job, plan, {});
  ASSERT_FALSE(inputs.remat.empty()) << RematOf(plan, model.layers).status().ToString();
  const MemoryBreakdown predicted = PredictMemory(inputs);
  const MemoryBreakdown measured = run.Step().peak_memory;
  EXPECT_NEAR(static_cast<double>(predicted.activations_bytes) /
                  static_cast<double>(measured.activations_bytes),
              1.0, 0.01)
      << "predicted " << predicted.activations_bytes << ", measured " << measured.activations_bytes;
  if (bits > 0) {
    EXPECT_LE(measured.workspace_bytes, predicted.workspace_bytes * 103 / 100);
  }
}

}  // namespace weft::engine
