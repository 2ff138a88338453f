// 2:4 sparse MLPs against plain ones whose weights are multiplied by the masks.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/techniques/sparse24/sparse24_products.h"
#include "worker/engine/techniques/sparse24/sparse24_testing.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {
namespace {

ModelSpec Bert() {
  ModelSpec spec = TinyModel();
  spec.family = "bert";
  return spec;
}

ModelSpec Vit() {
  ModelSpec spec = TinyModel();
  spec.family = "vit";
  spec.image_size = 16;
  spec.patch_size = 8;
  spec.classes = 5;
  return spec;
}

Batch BatchOf(const ModelSpec& spec) {
  if (spec.family == "vit") return *NoiseImages(spec).Get(0, 0, kSequences);
  if (spec.family == "bert") {
    return *RandomMasked(spec.vocab_size, spec.context, 0.3).Get(0, 0, kSequences);
  }
  return TokensOf(spec);
}

// The network whose weights are multiplied by their masks has the same loss and gradients: they are
// of the products, and the mask is taken as a constant. Without masks they are others.
void ExpectFollowsMaskedNetwork(const ModelSpec& spec, const std::string& method) {
  SCOPED_TRACE(spec.family);
  TinyRun sparse(spec, OptionsOf(Exact(method)));
  Prepare(sparse, 0);
  TinyRun masked(spec, OptionsOf({}));
  const Batch batch = BatchOf(spec);
  masked.Differentiate(batch);
  const std::vector<float> dense = masked.Gradients();
  ParameterSet& parameters = masked.model->parameters();
  for (const int64_t i : SparseWeights(parameters)) {
    const TensorView weight = parameters.value(i);
    const std::vector<float> mask = Mask(weight, method == "sr_ste");
    for (size_t e = 0; e < mask.size(); ++e) weight.As<float>()[e] *= mask[e];
  }
  ASSERT_TRUE(masked.model->Pack(masked.context).ok());
  const double truth = masked.Differentiate(batch);
  EXPECT_GT(Distance(dense, masked.Gradients()), 1e-3);
  EXPECT_NEAR(sparse.Differentiate(batch), truth, 1e-5 * truth);
  EXPECT_LT(Distance(sparse.Gradients(), masked.Gradients()), 2e-5);
}

TEST(Sparse24, FollowsTheMaskedNetwork) {
  for (const char* method : {"masked_decay", "sr_ste", "static"}) {
    SCOPED_TRACE(method);
    for (const ModelSpec& spec : {TinyModel(), WithSquaredRelu(), Llama(), Bert(), Vit()}) {
      ExpectFollowsMaskedNetwork(spec, method);
    }
  }
}

// The two largest of four in a row less the third, scaled so that they are as near as they can be.
std::vector<float> Shrunk(const TensorView& weight) {
  const auto* w = weight.As<float>();
  std::vector<float> shrunk;
  double product = 0, square = 0;
  for (int64_t i = 0; i < weight.shape.Elements(); i += 4) {
    std::array<float, 4> sorted;
    for (int k = 0; k < 4; ++k) sorted[k] = std::abs(w[i + k]);
    std::sort(sorted.begin(), sorted.end());
    for (int k = 0; k < 4; ++k) {
      const float over = std::max(std::abs(w[i + k]) - sorted[1], 0.0f);
      shrunk.push_back(std::copysign(over, w[i + k]));
      product += static_cast<double>(w[i + k]) * shrunk.back();
      square += static_cast<double>(over) * over;
    }
  }
  for (float& value : shrunk) value *= static_cast<float>(product / square);
  return shrunk;
}

TEST(Sparse24, FollowsTheNetworkOfShrunkWeights) {
  TinyRun sparse(TinyModel(), OptionsOf(Exact("s_ste")));
  Prepare(sparse, 0);
  TinyRun shrunk(TinyModel(), OptionsOf({}));
  ParameterSet& parameters = shrunk.model->parameters();
  for (const int64_t i : SparseWeights(parameters)) {
    const std::vector<float> values = Shrunk(parameters.value(i));
    std::copy(values.begin(), values.end(), parameters.value(i).As<float>());
  }
  ASSERT_TRUE(shrunk.model->Pack(shrunk.context).ok());
  const Batch batch = TokensOf(TinyModel());
  const double truth = shrunk.Differentiate(batch);
  EXPECT_NEAR(sparse.Differentiate(batch), truth, 1e-5 * truth);
  EXPECT_LT(Distance(sparse.Gradients(), shrunk.Gradients()), 2e-5);
}

// slope multiplies by the rows' mask forward, and back by what a mask of columns leaves of it.
TEST(Sparse24, SlopePrunesTwiceForTheGradientOfTheInput) {
  TinyRun run(TinyModel(), OptionsOf({}));
  ParameterSet& parameters = run.model->parameters();
  const int64_t index = SparseWeights(parameters).front();
  const TensorView weight = parameters.value(index);
  const int64_t out = weight.shape[0], in = weight.shape[1], rows = 3;
  Sparse24ProductsFactory factory(Exact("slope"));
  const auto products = factory.Make({.parameters = &parameters,
                                      .weight = index,
                                      .weights = {{.rows = out, .first = index}},
                                      .in_features = in});
  ASSERT_TRUE(factory.ChooseLayers().ok());
  ASSERT_TRUE(factory.Allocate(run.context).ok());
  factory.SetSparse(true);
  ASSERT_TRUE(factory.FindMasks(run.context).ok());
  EXPECT_FALSE(products->Fuses(kernels::ProductActivation::kSwiGlu)) << "they are still dense";
  ASSERT_TRUE(products->Pack(run.context, Repack::kAll).ok());
  EXPECT_TRUE(products->Fuses(kernels::ProductActivation::kSwiGlu));
  const auto made = [&](int64_t columns) {
    auto tensor = Tensor::New(run.context, Component::kWorkspace, DType::kF32, {rows, columns});
    WEFT_CHECK(tensor.ok(), tensor.status().message());
    return *std::move(tensor);
  };
  const Tensor x = made(in), y = made(out), dy = made(out), dx = made(in);
  for (int64_t i = 0; i < rows * in; ++i) x.As<float>()[i] = std::sin(static_cast<float>(i));
  for (int64_t i = 0; i < rows * out; ++i) dy.As<float>()[i] = std::cos(static_cast<float>(i));
  ASSERT_TRUE(products->Forward(run.context, x, y, {}, {.training = true}).ok());
  ASSERT_TRUE(products->InputGradient(run.context, {dy}, dx, {}, {}).ok());

  const auto* w = weight.As<float>();
  const std::vector<float> mask = Mask(weight, true);
  std::vector<float> twice = mask;
  for (int64_t c = 0; c < in; ++c) {
    for (int64_t first = 0; first < out; first += 4) {
      std::vector<std::pair<float, int64_t>> kept;
      for (int64_t r = first; r < first + 4; ++r) {
        if (mask[static_cast<size_t>(r * in + c)] == 0) continue;
        kept.emplace_back(std::abs(w[r * in + c]), r);
      }
      std::sort(kept.rbegin(), kept.rend());
      for (size_t k = 2; k < kept.size(); ++k)
        twice[static_cast<size_t>(kept[k].second * in + c)] = 0;
    }
  }
  EXPECT_NE(mask, twice);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < in; ++i) {
        sum += double{x.As<float>()[row * in + i]} * w[o * in + i] *
               mask[static_cast<size_t>(o * in + i)];
      }
      EXPECT_NEAR(y.As<float>()[row * out + o], sum, 1e-5);
    }
    for (int64_t i = 0; i < in; ++i) {
      double sum = 0;
      for (int64_t o = 0; o < out; ++o) {
        sum += double{dy.As<float>()[row * out + o]} * w[o * in + i] *
               twice[static_cast<size_t>(o * in + i)];
      }
      EXPECT_NEAR(dx.As<float>()[row * in + i], sum, 1e-5);
    }
  }
}

// Two of each four columns of what the MLP makes count, and the loss has the gradients of that.
TEST(Sparse24, PrunedActivationsHaveTheGradientsOfTheirLoss) {
  ModelSpec spec = WithSquaredRelu();
  spec.dropout = spec.attention_dropout = 0;
  TinyRun dense(spec, OptionsOf({})), pruned(spec, OptionsOf({.method = "activations"}));
  Prepare(pruned, 0);
  const Batch batch = TokensOf(spec, 0, 1);
  const double loss = pruned.Differentiate(batch);
  EXPECT_NE(loss, dense.Loss(batch));
  const std::vector<float> gradients = pruned.Gradients();
  // Along the gradient, both ways: few activations come in or go within such a step.
  double squares = 0;
  for (const float gradient : gradients) squares += double{gradient} * gradient;
  const double length = 1e-3 / std::sqrt(squares);
  const auto at = [&](double share) {
    ParameterSet& parameters = pruned.model->parameters();
    std::vector<std::vector<float>> old;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const TensorView value = parameters.value(i), gradient = parameters.gradient(i);
      old.push_back(ValuesOf(value));
      for (int64_t e = 0; e < value.shape.Elements(); ++e) {
        value.As<float>()[e] += static_cast<float>(share * length * gradient.As<float>()[e]);
      }
    }
    WEFT_CHECK(pruned.model->Pack(pruned.context).ok(), "pack");
    const double found = pruned.Loss(batch);
    for (size_t i = 0; i < old.size(); ++i) {
      std::copy(old[i].begin(), old[i].end(),
                parameters.value(static_cast<int64_t>(i)).As<float>());
    }
    return found;
  };
  const double slope = (at(1) - at(-1)) / (2 * length);
  EXPECT_NEAR(slope, squares, 0.03 * squares);
}

TEST(Sparse24, ActivationsArePrunedAfterTheFirstSteps) {
  RandomTokens tokens(TinyModel().vocab_size, TinyModel().context);
  JobSpec job = JobOf({.method = "activations", .switch_share = 0.25}), plain = JobOf({});
  job.model = plain.model = WithSquaredRelu();
  TinyTraining pruned(job, TinyPlan("bf16"), tokens), dense(plain, TinyPlan("bf16"), tokens);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(pruned.Step().loss, dense.Step().loss);
  EXPECT_NE(pruned.Step().loss, dense.Step().loss);
}

TEST(Sparse24, EveryFamilyHasSparseMlps) {
  for (const ModelSpec& spec : {TinyModel(), Llama(), Bert(), Vit()}) {
    TinyRun run(spec, OptionsOf(Exact()));
    EXPECT_EQ(std::ssize(SparseWeights(run.model->parameters())),
              spec.layers * (spec.family == "llama" ? 3 : 2))
        << spec.family;
  }
}

// The mean over draws goes to the exact gradient as one over the root of their number.
TEST(Sparse24, EstimatesOfGradientsHaveNoBias) {
  for (ModelSpec spec : {TinyModel(), Llama()}) {
    spec.dropout = spec.attention_dropout = 0;  // They are drawn for each step, too.
    for (const char* estimate : {"minimum_variance", "sequential"}) {
      SCOPED_TRACE(estimate);
      SparsitySpec sparsity = Exact();
      TinyRun exact(spec, OptionsOf(sparsity));
      Prepare(exact, 0);
      const Batch batch = TokensOf(spec);
      exact.Differentiate(batch);
      const std::vector<float> truth = exact.Gradients();
      sparsity.gradient_estimate = estimate;
      TinyRun run(spec, OptionsOf(sparsity));
      std::vector<double> sum(truth.size());
      std::array<double, 2> errors{};
      constexpr std::array<int64_t, 2> kDraws = {32, 512};
      int64_t drawn = 0;
      for (size_t k = 0; k < kDraws.size(); ++k) {
        for (; drawn < kDraws[k]; ++drawn) {
          Prepare(run, drawn);
          run.Differentiate(batch);
          const std::vector<float> one = run.Gradients();
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
        }
        for (size_t i = 0; i < sum.size(); ++i) {
          const double off = sum[i] / static_cast<double>(drawn) - truth[i];
          errors[k] += off * off;
        }
      }
      EXPECT_GT(errors[0], 0);
      // A sixteenth, and a third more for chance.
      EXPECT_LT(errors[1], errors[0] / 12);
    }
  }
}

TEST(Sparse24, EveryMicroBatchDrawsForItsOwnRows) {
  const ModelSpec spec = Llama();
  SparsitySpec sparsity{.method = "masked_decay"};
  TinyRun whole(spec, OptionsOf(sparsity)), parts(spec, OptionsOf(sparsity));
  Prepare(whole, 5);
  Prepare(parts, 5);
  whole.Differentiate(TokensOf(spec));
  std::vector<float> sum(whole.Gradients().size());
  for (const int64_t first : {0, 2}) {
    parts.Differentiate(TokensOf(spec, first, 2), 1.0f, first);
    const std::vector<float> one = parts.Gradients();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
  }
  EXPECT_LT(Distance(sum, whole.Gradients()), 2e-5);
}

// Their chunks are whole groups of four tokens.
TEST(Sparse24, ContextParallelRanksDrawForTheirOwnTokens) {
  for (const char* estimate : {"minimum_variance", "sequential"}) {
    for (const ModelSpec& model : {TinyModel(), Llama()}) {
      MeshCase c{JobOf({.method = "masked_decay",
                        .decay = 0.01,
                        .mask_interval = 2,
                        .gradient_estimate = estimate},
                       6),
                 TinyPlan("fp32", 2, 2)};
      c.job.model = model;
      c.job.model.context = 32;
      c.job.model.dropout = c.job.model.attention_dropout = 0;
      c.job.optimizer.learning_rate = 1e-3;
      const MeshOutcome whole = TrainOnMesh(c).front();
      const std::vector<std::pair<const char*, MeshCase>> meshes = {
          {"ring 2", WithContext(c, 2)},
          {"ring 4", WithContext(c, 4)},
          {"ulysses 2", WithContext(c, 2, "ulysses")},
          {"ring 2, zero 3", WithZero(WithContext(c, 2), 3)},
          {"ring 2 x tensor 2 with sequence", WithTensor(WithContext(c, 2), 2, true)}};
      for (const auto& [name, mesh] : meshes) {
        SCOPED_TRACE(model.family + ", " + estimate + ", " + name);
        ExpectFollows(TrainOnMesh(mesh), whole, 2e-5, 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
