// FP8 training on meshes against that of one rank.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "worker/engine/techniques/fp8/fp8_scaling.h"
#include "worker/engine/testing/context_run.h"

namespace weft::engine {
namespace {

MeshCase InFp8(const ModelSpec& model, const std::string& scaling = "delayed") {
  MeshCase c = CaseOf(model, "ring", 1, 1, "keep", "fp8");
  c.job.train.fp8.scaling = scaling;
  c.job.train.fp8.history = 4;
  c.job.train.steps = 6;  // so that magnitudes are forgotten
  return c;
}

ModelSpec Deep(ModelSpec model) {
  model.layers = 5;
  return model;
}

MeshCase Recomputed(MeshCase c, const std::string& policy) {
  c.plan.block_memory_policy.assign(c.plan.block_memory_policy.size(), policy);
  return c;
}

MeshCase WithBf16Blocks(MeshCase c, int64_t first, int64_t last) {
  c.job.train.fp8.bf16_first_blocks = first;
  c.job.train.fp8.bf16_last_blocks = last;
  return c;
}

/// How far losses and, in parts of themselves, gradient norms may be from those of one rank when
/// codes come from other roundings.
struct Roundings {
  double loss, norm;
};

/// Four standard deviations of what the roundings of quantised values make of them.
Roundings RoundingsOf(const MeshCase& c) {
  const ModelSpec& model = c.job.model;
  // A code has three bits after its leading one. So it is off by 2^-4 at most of its leading bit,
  // evenly distributed, and its number is 1 to 2 times that bit.
  const double code = 0x1p-4 / std::sqrt(6.0);
  // The inputs of four products a block are rounded one after the other, in both trainings.
  const double hidden = code * std::sqrt(2.0 * 4.0 * static_cast<double>(model.layers));
  // Both are means over the tokens of a step, whose roundings are independent.
  const auto tokens = static_cast<double>(c.job.train.global_batch * c.length());
  const double mean = 4 * hidden / std::sqrt(tokens);
  // Logits are products of normalised rows and of weights that start with a deviation of 0.02.
  return {.loss = mean * 0.02 * std::sqrt(static_cast<double>(model.width)), .norm = mean};
}

/// The trainings of one rank and of the ranks of a mesh that follows it.
struct Trainings {
  MeshOutcome whole;
  std::vector<MeshOutcome> ranks;
};

Trainings ExpectLikeOneRank(const MeshCase& c, double loss, double norms) {
  SCOPED_TRACE(NameOf(c) + ", " + c.job.train.fp8.scaling);
  Trainings trainings{TrainOnMesh(c.Whole()).front(), TrainOnMesh(c)};
  const MeshOutcome& whole = trainings.whole;
  EXPECT_EQ(whole.state.tensors.contains("fp8/scales"), c.job.train.fp8.scaling == "delayed");
  ExpectFollows(trainings.ranks, whole, loss, norms);
  return trainings;
}

/// With steps so small that little follows from roundings.
MeshCase Gentle(MeshCase c) {
  c.job.optimizer.learning_rate = 1e-3;
  return c;
}

SavedState StateOf(const std::vector<MeshOutcome>& ranks) {
  SavedState state;
  for (const MeshOutcome& rank : ranks) state.Add(rank.state);
  return state;
}

void ExpectWithinRoundings(const MeshCase& c) {
  const Roundings roundings = RoundingsOf(c);
  ExpectLikeOneRank(c, roundings.loss, roundings.norm);
}

/// Expects the bits of one rank. Only the norm of all gradients is summed in another order, which
/// changes nothing without clipping.
void ExpectSameBits(MeshCase c) {
  c.job.train.gradient_clip_norm = 0;
  const Trainings trainings = ExpectLikeOneRank(c, 1e-12, 1e-6);
  EXPECT_EQ(StateOf(trainings.ranks).tensors, trainings.whole.state.tensors) << NameOf(c);
}

TEST(Fp8Meshes, StagesOfAPipelineHaveTheBitsOfOneRank) {
  const ModelSpec llama = Deep(LlamaModel());
  for (const char* scaling : {"delayed", "current"}) {
    ExpectSameBits(WithStages(InFp8(llama, scaling), {3, 2}, "1f1b"));
    ExpectSameBits(WithStages(InFp8(llama, scaling), {3, 2}, "zero_bubble"));
  }
  ExpectSameBits(WithStages(InFp8(llama), {2, 3}, "gpipe"));
  ExpectSameBits(WithStages(InFp8(llama), {1, 1, 2, 1}, "interleaved", 2));
  ExpectSameBits(WithStages(Recomputed(InFp8(llama), "recompute"), {2, 2, 1}, "1f1b"));
  ExpectSameBits(WithStages(Recomputed(InFp8(llama), "attention"), {3, 2}, "zero_bubble"));
  // Stages with some of the blocks that are left to bf16, or no others.
  ExpectSameBits(WithStages(WithBf16Blocks(InFp8(llama), 1, 1), {3, 2}, "1f1b"));
  ExpectSameBits(WithStages(WithBf16Blocks(InFp8(llama), 2, 1), {2, 2, 1}, "zero_bubble"));
}

TEST(Fp8Meshes, StagesThatShareATableFollowOneRank) {
  // Gradients of the table are added up in another order.
  const ModelSpec gpt2 = Deep(Gpt2Model());
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    ExpectLikeOneRank(WithStages(InFp8(gpt2), {2, 3}, schedule), 1e-5, 1e-4);
  }
}

// Each rank scales its chunks of the sequences by themselves in the first step, with current scales
// in all.
TEST(Fp8Meshes, RanksThatShareSequencesFollowOneRank) {
  for (const char* scaling : {"delayed", "current"}) {
    ExpectWithinRoundings(WithContext(Gentle(InFp8(Gpt2Model(), scaling)), 2));
    ExpectWithinRoundings(WithContext(Gentle(InFp8(LlamaModel(), scaling)), 2, "ulysses"));
  }
  MeshCase all = WithContext(WithStages(InFp8(Deep(LlamaModel())), {3, 2}, "zero_bubble"), 2);
  all.plan.mesh.data = 2;
  all.plan.accumulation_steps = 1;
  ExpectWithinRoundings(Gentle(all));
}

/// Widens a model so that its parts are multiples of 16.
ModelSpec Wide(ModelSpec model) {
  model.width = 64;
  model.heads = 4;
  if (model.family == "llama") model.mlp_width = 96;
  return model;
}

/// Codes of a [rows, columns] weight, as the whole or this rank's part of it, and of the same as an
/// input, with what each stands for.
struct Codes {
  std::vector<uint8_t> weight, input;
  float weight_scale = 0, input_scale = 0;
};

Codes CodesOf(const std::vector<float>& values, const Shape& shape, Collective* tensor_group) {
  Allocator allocator(0);
  Context context;
  context.allocator = &allocator;
  Fp8Scaling fp8({}, false, tensor_group);
  std::vector<float> own = values;
  const TensorView view(own.data(), DType::kF32, shape);
  const int64_t layer = fp8.AddLayer({.inputs = true});
  const int64_t number = fp8.AddWeight([view] { return view; }, [] { return true; });
  WEFT_CHECK(fp8.Allocate(context).ok(), "allocate");
  Fp8Tensor weight;
  WEFT_CHECK(fp8.AgreeOnWeights(context, Repack::kAll).ok(), "agree");
  WEFT_CHECK(fp8.QuantizeWeight(context, number, view, weight).ok(), "weight");
  Tensor x = *Tensor::New(context, Component::kActivations, DType::kF32, shape);
  std::copy(own.begin(), own.end(), x.view().As<float>());
  const Fp8Tensor input = *fp8.QuantizeInput(context, layer, x, {.codes = true}, true);
  const auto codes = [](const Tensor& tensor) {
    const auto* bytes = static_cast<const uint8_t*>(tensor.view().data);
    return std::vector<uint8_t>(bytes, bytes + tensor.shape().Elements());
  };
  return {codes(weight.codes), codes(input.codes), *weight.inverse_scale.view().As<float>(),
          *input.inverse_scale.view().As<float>()};
}

TEST(Fp8Meshes, CodesOfPartsAreThoseOfTheWhole) {
  constexpr int64_t kRows = 32, kColumns = 16;
  PhiloxStream random(PhiloxKey{3, 0, 0});
  std::vector<float> whole(kRows * kColumns);
  for (float& value : whole) value = static_cast<float>(random.Normal());
  whole[kRows * kColumns - 1] = 7;  // of the second rank
  const Codes truth = CodesOf(whole, {kRows, kColumns}, nullptr);
  RunRanks(2, std::chrono::seconds(20), [&](Collective& world) {
    const auto half = static_cast<std::ptrdiff_t>(whole.size() / 2);
    const auto begin = world.rank() * half;
    const std::vector<float> part(whole.begin() + begin, whole.begin() + begin + half);
    const Codes own = CodesOf(part, {kRows / 2, kColumns}, &world);
    EXPECT_EQ(own.weight_scale, truth.weight_scale);
    EXPECT_EQ(own.input_scale, truth.input_scale);
    EXPECT_TRUE(std::equal(own.weight.begin(), own.weight.end(), truth.weight.begin() + begin));
    EXPECT_TRUE(std::equal(own.input.begin(), own.input.end(), truth.input.begin() + begin));
  });
}

// Frozen weights are not read again until all of them may have changed.
TEST(Fp8Meshes, RanksAgreeOnScalesOfFrozenWeightsOnce) {
  for (const bool trained : {false, true}) {
    SCOPED_TRACE(trained ? "trained" : "frozen");
    RunRanks(2, std::chrono::seconds(20), [trained](Collective& world) {
      Allocator allocator(0);
      Context context;
      context.allocator = &allocator;
      Fp8Scaling fp8({}, false, &world);
      std::vector<float> values(16 * 16, 1.0f);
      const TensorView view(values.data(), DType::kF32, {16, 16});
      int reads = 0;
      fp8.AddLayer({.inputs = true});
      const auto read = [&] {
        ++reads;
        return view;
      };
      const int64_t number = fp8.AddWeight(read, [trained] { return trained; });
      ASSERT_TRUE(fp8.Allocate(context).ok());
      Fp8Tensor weight;
      const auto scale_after = [&](Repack what) {
        EXPECT_TRUE(fp8.StartPack(context, what).ok());
        EXPECT_TRUE(fp8.QuantizeWeight(context, number, view, weight).ok());
        return *weight.inverse_scale.view().As<float>();
      };
      const float first = scale_after(Repack::kTrained);
      EXPECT_EQ(reads, 1) << "there were no scales yet";
      if (world.rank() == 1) values[0] = 4;
      EXPECT_EQ(scale_after(Repack::kTrained), trained ? 4 * first : first);
      EXPECT_EQ(reads, trained ? 2 : 1);
      EXPECT_EQ(scale_after(Repack::kAll), 4 * first);
      EXPECT_EQ(reads, trained ? 3 : 2);
    });
  }
}

// Each rank rounds its partial sum to bf16, and quantised values follow these roundings.
TEST(Fp8Meshes, RanksThatShareMatricesFollowOneRank) {
  const ModelSpec gpt2 = Wide(Gpt2Model()), llama = Wide(LlamaModel());
  for (const char* scaling : {"delayed", "current"}) {
    ExpectWithinRoundings(WithTensor(Gentle(InFp8(gpt2, scaling)), 2));
    ExpectWithinRoundings(WithTensor(Gentle(InFp8(llama, scaling)), 2, true));
  }
  const MeshCase stages = WithStages(Gentle(InFp8(Deep(llama))), {3, 2}, "zero_bubble");
  ExpectWithinRoundings(WithTensor(stages, 2));
  ExpectWithinRoundings(WithTensor(WithContext(Gentle(InFp8(gpt2)), 2), 2, true));
}

TEST(Fp8Meshes, WorkersThatRarelyMeetHaveScalesOfTheirOwn) {
  MeshCase c = Gentle(InFp8(Deep(LlamaModel())));
  c.plan.mesh.data = 2;
  c.plan.accumulation_steps = 1;
  c.job.train.local_steps = 3;
  c.job.train.gradient_clip_norm = 0;
  const SavedState workers = StateOf(TrainOnMesh(c));
  EXPECT_NE(workers.tensors.at("fp8/scales"), workers.tensors.at("rank/1/fp8/scales"));
  EXPECT_NE(workers.tensors.at("fp8/magnitudes"), workers.tensors.at("rank/1/fp8/magnitudes"));
  const SavedState stages = StateOf(TrainOnMesh(WithStages(c, {3, 2}, "1f1b")));
  EXPECT_EQ(stages.tensors, workers.tensors);
}

}  // namespace
}  // namespace weft::engine
