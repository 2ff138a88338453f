// Bottlenecks that read the sum with the residual stream (pfeiffer): a branch with one against its
// formula in float64, and networks whose norms come after the sums.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/nn/residual.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/bottleneck.h"
#include "worker/engine/techniques/peft/bottleneck_cost.h"
#include "worker/engine/testing/float64_matrices.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kLength = 4, kSequences = 3;
constexpr double kEpsilon = 1e-5;
constexpr float kShare = -0.5f;  // The sub-layer multiplies by it.

ModelSpec ModelOf(const std::string& norm_position = "pre") {
  ModelSpec model = TinyModel();
  model.norm_position = norm_position;
  model.peft.method = "pfeiffer";
  model.peft.reduction_factor = 4;
  model.peft.non_linearity = "gelu";  // without a kink
  return model;
}

/// Chooses the same for all branches.
class OneChoice : public BranchGate {
 public:
  explicit OneChoice(BranchChoice choice) : choice_(std::move(choice)) {}
  BranchChoice Choose(const Context&, const GraftUse&) const override { return choice_; }

 private:
  BranchChoice choice_;
};

/// A branch around that sub-layer in float64: MAD-X (Pfeiffer et al. 2020) where the norm comes
/// after the sum, and the same formula where no norm is there.
struct Reference {
  NormPosition position = NormPosition::kPre;
  BranchChoice choice;
  int64_t width = 0, middle = 0;
  Doubles x;
  Doubles weight, bias;  ///< Of the norm; none without one.
  Doubles down, down_bias, up, up_bias;

  Doubles Norm(Doubles rows) const {
    for (int64_t row = 0; row < std::ssize(rows) / width; ++row) {
      double* const own = rows.data() + row * width;
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < width; ++i) mean += own[i] / static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) {
        variance += std::pow(own[i] - mean, 2) / static_cast<double>(width);
      }
      const double scale = 1 / std::sqrt(variance + kEpsilon);
      for (int64_t i = 0; i < width; ++i) own[i] = (own[i] - mean) * scale * weight[i] + bias[i];
    }
    return rows;
  }
  Doubles Bottleneck(const Doubles& read) const {
    const int64_t rows = std::ssize(read) / width;
    Doubles inner = Times(read, Transposed(down, middle, width), rows, width, middle);
    for (int64_t i = 0; i < rows * middle; ++i) {
      const double value = inner[i] + down_bias[i % middle];
      inner[i] = 0.5 * value * std::erfc(-value / std::sqrt(2.0));
    }
    Doubles made = Times(inner, Transposed(up, width, middle), rows, middle, width);
    for (int64_t i = 0; i < rows * width; ++i) made[i] += up_bias[i % width];
    return made;
  }
  bool Picks(int64_t sequence) const {
    const std::vector<int64_t>& picked = choice.sequences;
    return picked.empty() || std::find(picked.begin(), picked.end(), sequence) != picked.end();
  }
  Doubles Result() const {
    const Doubles in = position == NormPosition::kPre ? Norm(x) : x;
    Doubles sum = x;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{choice.scale} * kShare * in[i];
    const Doubles made = Bottleneck(position == NormPosition::kPost ? Norm(sum) : sum);
    for (size_t i = 0; i < sum.size(); ++i) {
      const bool computed = Picks(static_cast<int64_t>(i) / width / kLength);
      sum[i] = computed ? sum[i] + choice.scale * made[i] : x[i];
    }
    return position == NormPosition::kPost ? Norm(sum) : sum;
  }
};

/// The gradient of the result along dy, by central differences.
Doubles SlopesOf(Reference reference, Doubles Reference::*tensor, const Doubles& dy) {
  constexpr double kStep = 1e-5;
  const auto along = [&] {
    const Doubles result = reference.Result();
    double sum = 0;
    for (size_t i = 0; i < dy.size(); ++i) sum += result[i] * dy[i];
    return sum;
  };
  Doubles slopes;
  for (double& value : reference.*tensor) {
    const double start = value;
    value = start + kStep;
    const double above = along();
    value = start - kStep;
    slopes.push_back((above - along()) / (2 * kStep));
    value = start;
  }
  return slopes;
}

/// A layer-normed branch of the engine, without a network.
struct Branch {
  ModelSpec model = ModelOf();
  Allocator allocator;
  Context context;
  ParameterSet parameters;
  ProductOptions products{DType::kF32};
  std::unique_ptr<ResidualBranch> branch;

  Branch(NormPosition position, const BranchChoice& choice) {
    kernels::cpu::SetThreads(1);
    context.allocator = &allocator;
    const GraftSite site{.parameters = &parameters,
                         .products = &products,
                         .sub_layer = SubLayer::kMlp,
                         .name = "mlp",
                         .width = model.width};
    const NormOptions norm{.name = "norm", .width = model.width, .epsilon = kEpsilon};
    branch = std::make_unique<ResidualBranch>(
        site, norm, position, BranchScaling::kNone, [&](const GraftSite& at, Grafts& grafts) {
          WEFT_CHECK(PutBottleneck(model, at, grafts).has_value(), "put");
          grafts.SetGate(std::make_unique<OneChoice>(choice));
        });
    branch->EndParameters(parameters.size());
    WEFT_CHECK(parameters.Allocate(context, true).ok(), "allocate");
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const std::vector<float> values = Normal(static_cast<size_t>(parameters[i].shape.Elements()),
                                               static_cast<uint64_t>(i), 0.4);
      std::copy(values.begin(), values.end(), parameters.value(i).As<float>());
    }
    WEFT_CHECK(branch->Pack(context, Repack::kAll).ok(), "pack");
  }

  Tensor Random(int64_t rows, uint64_t seed) {
    auto made = Tensor::New(context, Component::kWorkspace, DType::kF32, {rows, model.width});
    const std::vector<float> values = Normal(static_cast<size_t>(rows * model.width), seed);
    std::copy(values.begin(), values.end(), made->As<float>());
    return *made;
  }
  Doubles Value(const std::string& name) const {
    return AsDoubles(parameters.value(*parameters.Find(name)));
  }
  Doubles Gradient(const std::string& name) const {
    return AsDoubles(parameters.gradient(*parameters.Find(name)));
  }
};

void ExpectItsFormula(NormPosition position, const BranchChoice& choice) {
  Branch own(position, choice);
  Context& context = own.context;
  const Batch drawn = *RandomTokens(own.model.vocab_size, kLength).Get(0, 0, kSequences);
  const auto batch = TokenBatch::New(context, drawn, 0);
  ASSERT_TRUE(batch.ok());
  const Tensor x = own.Random(batch->count, 11), dy = own.Random(batch->count, 12);
  const bool norms = position != NormPosition::kNone;
  const Reference reference{.position = position,
                            .choice = choice,
                            .width = own.model.width,
                            .middle = BottleneckWidth(own.model),
                            .x = AsDoubles(x),
                            .weight = norms ? own.Value("norm.weight") : Doubles(),
                            .bias = norms ? own.Value("norm.bias") : Doubles(),
                            .down = own.Value("mlp.adapter_down.weight"),
                            .down_bias = own.Value("mlp.adapter_down.bias"),
                            .up = own.Value("mlp.adapter_up.weight"),
                            .up_bias = own.Value("mlp.adapter_up.bias")};
  ParameterGradients sums(own.parameters.DifferentiatedGradients());
  sums.StartStep();
  sums.StartPass({});
  Tape tape(&sums);
  const Value in = tape.NewValue(x, true);
  const auto y = own.branch->Forward(
      context, tape, {in, {}}, *batch, {},
      [&](const Value& read, const TokenBatch&) { return Scale(context, tape, read, kShare); });
  ASSERT_TRUE(y.ok()) << y.status().message();
  const auto sum = Sum(context, tape, *y);
  ASSERT_TRUE(sum.ok());
  EXPECT_LT(Difference(AsDoubles(sum->tensor), reference.Result()), 1e-6);
  ASSERT_TRUE(tape.AddGradient(context, sum->node, dy).ok());
  ASSERT_TRUE(tape.RunBackward(context).ok());
  ASSERT_TRUE(sums.FinishPass(context).ok());
  const Doubles slopes = AsDoubles(dy);
  EXPECT_LT(
      Difference(AsDoubles(tape.TakeGradient(in.node)), SlopesOf(reference, &Reference::x, slopes)),
      1e-5);
  std::vector<std::pair<std::string, Doubles Reference::*>> tensors = {
      {"mlp.adapter_down.weight", &Reference::down},
      {"mlp.adapter_down.bias", &Reference::down_bias},
      {"mlp.adapter_up.weight", &Reference::up},
      {"mlp.adapter_up.bias", &Reference::up_bias}};
  if (norms) {
    tensors.emplace_back("norm.weight", &Reference::weight);
    tensors.emplace_back("norm.bias", &Reference::bias);
  }
  ASSERT_EQ(std::ssize(tensors), own.parameters.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_LT(Difference(own.Gradient(name), SlopesOf(reference, tensor, slopes)), 1e-5) << name;
  }
}

// A post-norm is used twice, and both uses have a gradient.
TEST(SumBottleneckTest, ABranchIsItsFormulaWithAllGradients) {
  for (const NormPosition position :
       {NormPosition::kPre, NormPosition::kPost, NormPosition::kNone}) {
    for (const BranchChoice& choice :
         std::vector<BranchChoice>{{}, {.scale = 1.25f}, {.scale = 1.25f, .sequences = {0, 2}}}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(position)) + ", scale " +
                   std::to_string(choice.scale) + ", " + std::to_string(choice.sequences.size()) +
                   " picked");
      ASSERT_NO_FATAL_FAILURE(ExpectItsFormula(position, choice));
    }
  }
}

TEST(SumBottleneckTest, PostNormNetworksStartAsTheyAreBitForBit) {
  const ModelSpec model = ModelOf("post");
  const Result<Batch> batch = RandomTokens(model.vocab_size, model.context).Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    TinyRun run(model, ModelOptionsOf(TinyPlan(precision)));
    TinyRun plain(WithoutPeft(model), ModelOptionsOf(TinyPlan(precision)));
    if (precision == std::string("bf16")) RoundMatrices(plain);
    EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch));
    Perturb(run, 0.1);
    EXPECT_NE(run.Logits(*batch), plain.Logits(*batch));
  }
}

// With norms that are trained, too, which the adapters' inputs come from.
TEST(SumBottleneckTest, PostNormLossesChangeAsGradientsSay) {
  ModelSpec model = ModelOf("post");
  model.peft.modules_to_save = {"*ln_2*"};
  const Result<Batch> batch = RandomTokens(model.vocab_size, model.context).Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
  Perturb(run, 0.1);
  const double loss = run.Differentiate(*batch);
  EXPECT_GT(CheckSlopes(run, loss, [&] { return run.Differentiate(*batch); }), 5);
}

TEST(SumBottleneckTest, PostNormMeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2, .zero_stage = 3},
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.pipeline = 2},
      {.block_memory_policy = {"recompute", "attention"}},
  };
  JobSpec job = TinyJob(4);
  job.model = ModelOf("post");
  job.model.peft.modules_to_save = {"*ln_2*"};
  job.optimizer.learning_rate = 1e-2;
  job.train.steps = 4;
  job.train.log_every_steps = 2;
  MeshCase c{job, TinyPlan("fp32", 2, 2)};
  c.plan.bucket_bytes = 4000;
  const MeshOutcome whole = TrainOnMesh(c).front();
  for (const Parallelism& mesh : meshes) {
    SCOPED_TRACE(mesh.Description());
    ExpectFollows(TrainOnMesh(c.On(mesh)), whole, 2e-5, 1e-4);
  }
}

}  // namespace
}  // namespace weft::engine
