// What context-, tensor- and expert-parallel ranks send over their links, against what is counted.
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/gradient_bytes.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "worker/engine/techniques/offload/mesh_testing.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

constexpr double kOfLink = 0.01;

/// What shares a training.
struct Sharing {
  std::string name;
  std::string family = "gpt2";
  std::string precision = "fp32";
  int64_t data = 1, tensor = 1, context = 1, expert = 1;
  bool sequence = false;
  int64_t rows = 1;
  std::string method = "ring";
  int64_t zero_stage = 0;
  bool mixture = expert > 1;  ///< Whose tokens go to all experts.
};

void PrintTo(const Sharing& way, std::ostream* out) {
  *out << way.name;
}

MeshCase LinkCase(const Sharing& way) {
  constexpr int64_t kPasses = 3;
  const int64_t ranks = way.data * way.expert;
  MeshCase c{TinyJob(kPasses * ranks), TinyPlan(way.precision, 1, kPasses)};
  ModelSpec& model = c.job.model;
  model.family = way.family;
  model.layers = 2;
  model.width = 128;
  model.heads = 4;
  model.vocab_size = 768;  // in whole tiles on each rank
  model.context = 32;
  if (way.family == "llama") {
    model.kv_heads = 2;
    model.mlp_width = 192;
    model.untied_classifier = true;
  }
  if (way.mixture) model.experts = model.experts_per_token = 4;
  c.job.train.steps = 2;
  c.job.train.precision = way.precision;
  c.job.train.log_every_steps = 10;
  c.job.train.eval_sequences = 1;
  c.job.resources.context_method = way.method;
  c.plan.mesh = {
      .data = way.data, .tensor = way.tensor, .context = way.context, .expert = way.expert};
  c.plan.sequence_parallel = way.sequence;
  c.plan.tensor_rows = way.rows;
  c.plan.zero_stage = way.zero_stage;
  c.plan.bucket_bytes = 1 << 18;
  c.plan.block_memory_policy.assign(static_cast<size_t>(model.layers), "keep");
  return c;
}

MemoryInputs LinkInputs(const MeshCase& c) {
  Plan plan = c.plan;
  plan.context_method = c.job.resources.context_method;
  return MemoryInputsOf(c.job, plan, {ProductsOf(PrecisionOf(plan.precision).products)});
}

class LinkOfRanks : public ::testing::TestWithParam<Sharing> {
 protected:
  /// Trains with these outside the device, and compares both directions.
  void ExpectCounted(const std::string& optimizer, const std::string& parameters,
                     const std::string& activations) {
    SCOPED_TRACE("optimizer " + optimizer + ", parameters " + parameters + ", activations " +
                 activations);
    MeshCase c = LinkCase(GetParam());
    c.plan.offload_optimizer = optimizer;
    c.plan.offload_parameters = parameters;
    c.plan.offload_activations = activations;
    const MemoryInputs inputs = LinkInputs(c);
    const int64_t passes = c.plan.accumulation_steps;
    int64_t down = passes * (inputs.offload_activations ? OffloadedActivationBytes(inputs) : 0);
    int64_t up = down;
    if (inputs.offload_optimizer) {
      const GradientLinkBytes gradients =
          GradientsOverLink(inputs.shape, inputs.zero_stage, inputs.ShardGroupSize());
      down += (passes - 1) * gradients.earlier_down + gradients.down;
      up += (passes - 1) * gradients.earlier_up;
      const StreamedBytes streamed = StreamedWeightBytes(inputs);
      up += passes * (streamed.forward + streamed.backward) + UploadedWeightBytes(inputs);
    }
    for (const Offloaded& own : TrainOffloaded(c)) {
      ExpectNear("down", own.down_bytes, down);
      ExpectNear("up", own.up_bytes, up);
    }
  }

 private:
  static void ExpectNear(const char* what, int64_t measured, int64_t counted) {
    EXPECT_GT(counted, 0);
    EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(counted),
                kOfLink * static_cast<double>(counted))
        << what;
  }
};

TEST_P(LinkOfRanks, CarriesTheOptimizersWeightsAndGradients) {
  if (GetParam().zero_stage < 3) ExpectCounted("host", "none", "none");
}

TEST_P(LinkOfRanks, CarriesParametersInEveryPass) {
  ExpectCounted("host", "host", "none");
}

TEST_P(LinkOfRanks, CarriesWhatBlocksSave) {
  ExpectCounted("none", "none", "host");
}

INSTANTIATE_TEST_SUITE_P(
    Ways, LinkOfRanks,
    ::testing::Values(
        Sharing{.name = "tensor", .tensor = 2},
        Sharing{.name = "tensorAndTokens",
                .family = "llama",
                .precision = "bf16",
                .tensor = 2,
                .sequence = true},
        Sharing{.name = "grid", .tensor = 4, .rows = 2},
        Sharing{
            .name = "tensorAndZero1", .data = 2, .tensor = 2, .sequence = true, .zero_stage = 1},
        Sharing{.name = "ring", .family = "llama", .context = 2},
        Sharing{.name = "ulysses", .precision = "bf16", .context = 2, .method = "ulysses"},
        Sharing{.name = "contextAndZero3", .family = "llama", .context = 2, .zero_stage = 3},
        Sharing{.name = "experts", .family = "llama", .expert = 2},
        Sharing{.name = "expertsAndZero2",
                .family = "llama",
                .precision = "bf16",
                .data = 2,
                .expert = 2,
                .zero_stage = 2}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace weft::engine
