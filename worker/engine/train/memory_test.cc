// What the planner promises about memory, measured against what the engine's allocator counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/model/memory_model.h"
#include "kernels/cpu/isa.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr double kTolerance = 0.03;
constexpr int64_t kTooSmallToMatter = int64_t{1} << 20;

struct Shape {
  int64_t layers, width, heads, vocab_size, context, micro_batch;
};

TEST(PredictMemoryTest, IsWithinThreePercentOfWhatTheEngineTakes) {
  // One with a wide classifier and short sequences, one that is mostly activations.
  for (const Shape& s : {Shape{2, 128, 2, 2500, 64, 6}, Shape{3, 128, 4, 700, 256, 2}}) {
    for (const PrecisionRecipe* recipe : AllPrecisions()) {
      const std::string precision(recipe->name);
      for (int64_t recomputed : {int64_t{0}, s.layers - 1, s.layers}) {
        SCOPED_TRACE(std::to_string(s.layers) + " layers, " + precision + ", " +
                     std::to_string(recomputed) + " recomputed");
        JobSpec job = TinyJob(2 * s.micro_batch);
        job.model.layers = s.layers;
        job.model.width = s.width;
        job.model.heads = s.heads;
        job.model.vocab_size = s.vocab_size;
        job.model.context = s.context;
        job.train.eval_sequences = s.micro_batch;
        Plan plan = TinyPlan(precision, s.micro_batch, 2);
        plan.block_memory_policy = BlockPolicies(s.layers, recomputed);
        RandomTokens tokens(s.vocab_size, s.context);
        TinyTraining run(job, plan, tokens);
        run.Step();
        const MemoryBreakdown measured = run.Step().peak_memory;

        MemoryInputs inputs;
        inputs.shape = ShapeOf(job);
        inputs.micro_batch = s.micro_batch;
        inputs.sequence_length = s.context;
        inputs.accumulation_steps = 2;
        inputs.precision = recipe;
        inputs.recomputed_blocks = recomputed;
        inputs.native_products = recipe->products != DType::kF16 &&
                                 kernels::cpu::ActiveIsa() >= kernels::cpu::Isa::kAvx512Bf16;
        MemoryBreakdown predicted = PredictMemory(inputs);
        // Operands that are widened for one product are the kernels' own, which no allocator
        // counts.
        inputs.native_products = true;
        predicted.workspace_bytes = PredictMemory(inputs).workspace_bytes;
        const auto expect_near = [](const char* name, int64_t promised, int64_t taken) {
          if (std::max(promised, taken) < kTooSmallToMatter) return;
          EXPECT_NEAR(static_cast<double>(promised) / static_cast<double>(taken), 1.0, kTolerance)
              << name << ": predicted " << promised << ", measured " << taken;
        };
        expect_near("parameters", predicted.parameters_bytes, measured.parameters_bytes);
        expect_near("gradients", predicted.gradients_bytes, measured.gradients_bytes);
        expect_near("optimizer", predicted.optimizer_bytes, measured.optimizer_bytes);
        expect_near("activations", predicted.activations_bytes, measured.activations_bytes);
        expect_near("workspace", predicted.workspace_bytes, measured.workspace_bytes);

        // An evaluation holds as workspace what a training step saves as activations.
        run.allocator.ResetPeaks();
        ASSERT_TRUE(run.trainer->Evaluate().ok());
        const MemoryBreakdown evaluation = run.allocator.Peaks();
        EXPECT_LE(static_cast<double>(evaluation.workspace_bytes + evaluation.activations_bytes),
                  (1 + kTolerance) *
                      static_cast<double>(predicted.workspace_bytes + predicted.activations_bytes));
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
