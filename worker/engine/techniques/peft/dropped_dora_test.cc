// DoRA whose adapters read dropped inputs, against float64 with the masks that it draws.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "worker/engine/techniques/peft/layer_testing.h"
#include "worker/engine/techniques/peft/lora_products.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {
namespace {

constexpr int64_t kCount = 5, kIn = LayerRun::kIn, kOut = LayerRun::kOut, kRank = LayerRun::kRank;
constexpr double kDropout = 0.4;

PeftSpec SpecOf(std::vector<std::string> targets, double dropout) {
  PeftSpec spec;
  spec.method = "lora";
  spec.use_dora = true;
  spec.rank = kRank;
  spec.alpha = 6;
  spec.dropout = dropout;
  spec.target_modules = std::move(targets);
  return spec;
}

/// What the inputs of an adapter are multiplied by.
Doubles MaskOf(LayerRun& run, const std::string& layer) {
  auto ones = Tensor::New(run.context, Component::kActivations, DType::kF32, {kCount, kIn});
  for (int64_t i = 0; i < kCount * kIn; ++i) ones->As<float>()[i] = 1;
  const uint32_t site = SiteHash(run.Factor(layer, "A").c_str());
  LinearLayer whole;
  whole.in_features = kIn;
  WEFT_CHECK(InputDropout(whole, kDropout).Apply(run.context, site, *ones, *ones, 0).ok(), "mask");
  return AsDoubles(ones->view());
}

Doubles Product(const Doubles& a, const Doubles& b) {
  Doubles product = a;
  for (size_t i = 0; i < a.size(); ++i) product[i] *= b[i];
  return product;
}

void AddTo(Doubles& sum, const Doubles& other, double factor = 1) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * other[i];
}

/// Columns [first, first + count) of a matrix with kOut.
Doubles ColumnsOf(const Doubles& matrix, int64_t first, int64_t count) {
  Doubles own;
  for (int64_t i = 0; i < kCount; ++i) {
    const auto begin = matrix.begin() + i * kOut + first;
    own.insert(own.end(), begin, begin + count);
  }
  return own;
}

struct Expected {
  Doubles y;  ///< [kCount, columns]
  Doubles dx, da, db, dmagnitude;
};

/// One output with an adapter: y = x Wᵀ + b + g * (z W'ᵀ) - z Wᵀ.
Expected Reference(LayerRun& run, const std::string& layer, int64_t columns, const Doubles& x,
                   const Doubles& dy, bool bias) {
  const double scale = LoraScale(run.model.peft, layer + ".weight");
  const Doubles weight = run.Value(layer + ".weight"), mask = MaskOf(run, layer);
  const Doubles a = run.Value(run.Factor(layer, "A")), b = run.Value(run.Factor(layer, "B"));
  const Doubles magnitude = run.Value(layer + ".lora_magnitude_vector");
  Doubles sum = weight;
  AddTo(sum, Times(b, a, columns, kRank, kIn), scale);
  Doubles inverse(static_cast<size_t>(columns));
  for (int64_t i = 0; i < columns; ++i) {
    double squares = 0;
    for (int64_t k = 0; k < kIn; ++k) squares += std::pow(sum[i * kIn + k], 2);
    inverse[i] = 1 / std::sqrt(squares);
  }
  const Doubles z = Product(x, mask);
  const Doubles results = Times(z, Transposed(sum, columns, kIn), kCount, kIn, columns);
  Expected expected;
  expected.y = Times(x, Transposed(weight, columns, kIn), kCount, kIn, columns);
  AddTo(expected.y, Times(z, Transposed(weight, columns, kIn), kCount, kIn, columns), -1);
  expected.dmagnitude.assign(static_cast<size_t>(columns), 0);
  Doubles through = dy;
  for (size_t i = 0; i < results.size(); ++i) {
    const size_t column = i % static_cast<size_t>(columns);
    const double gain = magnitude[column] * inverse[column];
    expected.y[i] += gain * results[i];
    if (bias) expected.y[i] += run.Value(layer + ".bias")[column];
    expected.dmagnitude[column] += dy[i] * results[i] * inverse[column];
    through[i] *= gain;
  }
  const Doubles base = Times(dy, weight, kCount, columns, kIn);
  Doubles dropped = Times(through, sum, kCount, columns, kIn);
  AddTo(dropped, base, -1);
  expected.dx = base;
  AddTo(expected.dx, Product(dropped, mask));
  const Doubles dsum = Times(Transposed(through, kCount, columns), z, columns, kCount, kIn);
  expected.da = Scaled(Times(Transposed(b, columns, kRank), dsum, kRank, columns, kIn), scale);
  expected.db = Scaled(Times(dsum, Transposed(a, kRank, kIn), columns, kIn, kRank), scale);
  return expected;
}

TEST(DroppedDoraTest, HasTheResultsAndGradientsOfItsFormula) {
  for (const std::vector<std::string>& targets :
       std::vector<std::vector<std::string>>{{"all-linear"}, {"a"}, {"b"}}) {
    for (const bool bias : {false, true}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(targets[0] + (bias ? " biased " : " ") + std::string(DTypeName(compute)));
        const double tolerance = compute == DType::kF32 ? 1e-6 : 2e-2;
        LayerRun run(SpecOf(targets, kDropout), compute, bias);
        run.gradients->StartPass({});
        Tape tape(run.gradients.get());
        const Value x = tape.NewValue(run.Random({kCount, kIn}, compute, 20), true);
        auto y = run.linear.Forward(run.context, tape, x);
        ASSERT_TRUE(y.ok()) << y.status().message();
        const Tensor dy = run.Random({kCount, kOut}, compute, 30);
        ASSERT_TRUE(tape.AddGradient(run.context, y->node, dy).ok());
        const auto status = tape.RunBackward(run.context);
        ASSERT_TRUE(status.ok()) << status.message();
        const Doubles dx = AsDoubles(tape.TakeGradient(x.node).view());
        ASSERT_TRUE(run.gradients->FinishPass(run.context).ok());

        const Doubles x64 = AsDoubles(x.tensor.view()), dy64 = AsDoubles(dy.view());
        Doubles expected_dx(dx.size(), 0.0);
        int64_t column = 0;
        for (int64_t i = 0; i < 2; ++i) {
          const std::string layer = i == 0 ? "h.0.a" : "h.0.b";
          const int64_t columns = LayerRun::kRows[i];
          const Doubles own_dy = ColumnsOf(dy64, column, columns);
          const Doubles own_y = ColumnsOf(AsDoubles(y->tensor.view()), column, columns);
          column += columns;
          if (!run.parameters.Find(run.Factor(layer, "A")).ok()) {
            const Doubles weight = run.Value(layer + ".weight");
            AddTo(expected_dx, Times(own_dy, weight, kCount, columns, kIn));
            continue;
          }
          const Expected expected = Reference(run, layer, columns, x64, own_dy, bias);
          EXPECT_LT(Difference(own_y, expected.y), tolerance) << layer;
          EXPECT_LT(Difference(run.Gradient(run.Factor(layer, "A")), expected.da), tolerance);
          EXPECT_LT(Difference(run.Gradient(run.Factor(layer, "B")), expected.db), tolerance);
          EXPECT_LT(Difference(run.Gradient(layer + ".lora_magnitude_vector"), expected.dmagnitude),
                    tolerance);
          AddTo(expected_dx, expected.dx);
        }
        EXPECT_LT(Difference(dx, expected_dx), tolerance);
        EXPECT_EQ(run.allocator.live_bytes(Component::kWorkspace), 0);
      }
    }
  }
}

TEST(DroppedDoraTest, RanksAndRecomputationDrawTheSameMasks) {
  MeshCase one{TinyJob(4), TinyPlan("fp32", 2, 2)};
  one.job.resources.device = "cpu";
  one.job.model.family = "llama";
  one.job.model.peft = SpecOf({"q_proj", "v_proj", "down_proj"}, kDropout);
  one.job.train.steps = 4;
  const MeshOutcome whole = TrainOnMesh(one).front();
  MeshCase recomputed = one;
  recomputed.plan.block_memory_policy = {"recompute", "recompute"};
  ExpectFollows(TrainOnMesh(recomputed), whole, 0, 0);
  MeshCase ranks = one;
  ranks.plan.mesh.data = 2;
  ranks.plan.accumulation_steps = 1;
  ExpectFollows(TrainOnMesh(ranks), whole, 2e-5, 1e-4);
}

TEST(DroppedDoraTest, DropsNothingWithoutTraining) {
  LayerRun dropped(SpecOf({"a"}, kDropout), DType::kF32, true);
  LayerRun plain(SpecOf({"a"}, 0), DType::kF32, true);
  const Tensor x = dropped.Random({kCount, kIn}, DType::kF32, 1);
  auto y = dropped.linear.Apply(dropped.context, Tape(nullptr), x);
  auto expected = plain.linear.Apply(plain.context, Tape(nullptr), x);
  ASSERT_TRUE(y.ok() && expected.ok());
  EXPECT_LT(Difference(AsDoubles(y->view()), AsDoubles(expected->view())), 1e-6);
}

}  // namespace
}  // namespace weft::engine
