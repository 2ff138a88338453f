// Products with adapters against float64 and finite differences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/techniques/peft/matrices_testing.h"
#include "worker/engine/techniques/peft/peft_products.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"

namespace weft::engine {
namespace {

/// A layer with two outputs, of which some have adapters, and its base is frozen.
struct LayerRun {
  static constexpr int64_t kIn = 24, kRows[2] = {16, 40}, kOut = 56, kRank = 3;
  Allocator allocator;
  Context context;
  ModelSpec model;
  ParameterSet parameters;
  PeftProductsFactory factory;
  Linear linear;
  std::unique_ptr<ParameterGradients> gradients;

  LayerRun(const std::string& method, std::vector<std::string> targets, DType compute, bool bias)
      : model(ModelOf(method, std::move(targets))),
        factory(model, nullptr),
        linear(&parameters, {{{"h.0.a", kRows[0]}, {"h.0.b", kRows[1]}}, kIn, bias},
               {compute, &factory}) {
    kernels::cpu::SetThreads(1);
    context.allocator = &allocator;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      parameters.SetStart(i, {.deviation = 0.3});
      if (parameters[i].adapter == AdapterSide::kNone) parameters.SetFrozen(i);
    }
    WEFT_CHECK(parameters.Allocate(context, true).ok(), "allocate");
    WEFT_CHECK(parameters.Initialize(4).ok(), "initialize");
    WEFT_CHECK(linear.Pack(context, Repack::kAll).ok(), "pack");
    gradients = std::make_unique<ParameterGradients>(parameters.DifferentiatedGradients());
    gradients->StartStep();
  }
  static ModelSpec ModelOf(const std::string& method, std::vector<std::string> targets) {
    ModelSpec spec;
    spec.peft.method = method;
    spec.peft.rank = kRank;
    spec.peft.adalora.init_r = kRank;
    spec.peft.alpha = 6;
    spec.peft.target_modules = std::move(targets);
    return spec;
  }
  Tensor Random(const Shape& shape, DType dtype, uint64_t seed) {
    auto tensor = Tensor::New(context, Component::kActivations, dtype, shape);
    const std::vector<float> values = Normal(static_cast<size_t>(shape.Elements()), seed);
    kernels::cpu::WithFloatType(dtype, [&]<class T>() {
      for (size_t i = 0; i < values.size(); ++i) tensor->As<T>()[i] = FromFloat<T>(values[i]);
    });
    return *tensor;
  }
  Doubles Value(const std::string& name) const {
    return AsDoubles(parameters.value(*parameters.Find(name)));
  }
  Doubles Gradient(const std::string& name) const {
    return AsDoubles(parameters.gradient(*parameters.Find(name)));
  }
  /// "A" or "B" of a layer.
  std::string Factor(const std::string& layer, const std::string& which) const {
    return layer + ".lora_" + which + (has_diagonal() ? "" : ".weight");
  }
  bool has_diagonal() const { return model.peft.method == "adalora"; }
  /// What A is multiplied by, row by row.
  Doubles Diagonal(const std::string& layer) const {
    return has_diagonal() ? Value(layer + ".lora_E") : Doubles(kRank, 1.0);
  }
  /// diag(E) A.
  Doubles ScaledA(const std::string& layer) const {
    Doubles a = Value(Factor(layer, "A"));
    const Doubles diagonal = Diagonal(layer);
    for (size_t i = 0; i < a.size(); ++i) a[i] *= diagonal[i / kIn];
    return a;
  }
};

TEST(LoraProductsTest, HaveTheResultsAndGradientsOfTheSum) {
  constexpr int64_t kCount = 5, kIn = LayerRun::kIn, kOut = LayerRun::kOut, kRank = LayerRun::kRank;
  struct Case {
    std::string method;
    std::vector<std::string> targets;
  };
  for (const auto& [method, targets] : std::vector<Case>{{"lora", {"all-linear"}},
                                                         {"lora", {"a"}},
                                                         {"lora", {"h.*.b"}},
                                                         {"adalora", {"all-linear"}},
                                                         {"adalora", {"h.*.b"}}}) {
    for (const bool bias : {false, true}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(method + " " + targets[0] + (bias ? " biased " : " ") +
                     std::string(DTypeName(compute)));
        const double tolerance = compute == DType::kF32 ? 1e-6 : 2e-2;
        LayerRun run(method, targets, compute, bias);
        const double scale = LoraScale(run.model.peft, "h.0.a.weight");
        EXPECT_EQ(scale, method == "lora" ? 2 : 6 / (3 + 1e-5));
        Doubles weight, biases;
        std::vector<std::string> adapted;
        for (int64_t i = 0; i < 2; ++i) {
          const std::string layer = i == 0 ? "h.0.a" : "h.0.b";
          Doubles own = run.Value(layer + ".weight");
          if (run.parameters.Find(run.Factor(layer, "A")).ok()) {
            adapted.push_back(layer);
            const Doubles product = Times(run.Value(run.Factor(layer, "B")), run.ScaledA(layer),
                                          LayerRun::kRows[i], kRank, kIn);
            for (size_t k = 0; k < own.size(); ++k) own[k] += scale * product[k];
          }
          weight.insert(weight.end(), own.begin(), own.end());
          if (!bias) continue;
          for (double b : run.Value(layer + ".bias")) biases.push_back(b);
        }
        EXPECT_EQ(adapted.size(), targets[0] == "all-linear" ? 2u : 1u);
        Doubles dweight(weight.size(), 0.0);
        // Twice: the second pass adds.
        for (uint64_t pass = 0; pass < 2; ++pass) {
          run.gradients->StartPass({});
          Tape tape(run.gradients.get());
          const Value x = tape.NewValue(run.Random({kCount, kIn}, compute, 20 + pass), true);
          auto y = run.linear.Forward(run.context, tape, x);
          ASSERT_TRUE(y.ok()) << y.status().message();
          const Doubles x64 = AsDoubles(x.tensor.view());
          Doubles expected = Times(x64, Transposed(weight, kOut, kIn), kCount, kIn, kOut);
          for (size_t i = 0; bias && i < expected.size(); ++i) expected[i] += biases[i % kOut];
          EXPECT_LT(Difference(AsDoubles(y->tensor.view()), expected), tolerance);

          const Tensor dy = run.Random({kCount, kOut}, compute, 30 + pass);
          const Doubles dy64 = AsDoubles(dy.view());
          ASSERT_TRUE(tape.AddGradient(run.context, y->node, dy).ok());
          const auto status = tape.RunBackward(run.context);
          ASSERT_TRUE(status.ok()) << status.message();
          const Tensor dx = tape.TakeGradient(x.node);
          EXPECT_LT(Difference(AsDoubles(dx.view()), Times(dy64, weight, kCount, kOut, kIn)),
                    tolerance);
          const Doubles added = Times(Transposed(dy64, kCount, kOut), x64, kOut, kCount, kIn);
          for (size_t i = 0; i < added.size(); ++i) dweight[i] += added[i];
          ASSERT_TRUE(run.gradients->FinishPass(run.context).ok());
        }
        for (const std::string& layer : adapted) {
          const bool first = layer == "h.0.a";
          const int64_t rows = LayerRun::kRows[first ? 0 : 1];
          const auto begin = dweight.begin() + (first ? 0 : LayerRun::kRows[0] * kIn);
          const Doubles dw(begin, begin + rows * kIn);
          const Doubles a = run.Value(run.Factor(layer, "A"));
          const Doubles b = run.Value(run.Factor(layer, "B"));
          const Doubles diagonal = run.Diagonal(layer);
          Doubles da = Scaled(Times(Transposed(b, rows, kRank), dw, kRank, rows, kIn), scale);
          Doubles de(kRank, 0.0);
          for (size_t k = 0; k < da.size(); ++k) {
            de[k / kIn] += da[k] * a[k];
            da[k] *= diagonal[k / kIn];
          }
          EXPECT_LT(Difference(run.Gradient(run.Factor(layer, "A")), da), tolerance);
          EXPECT_LT(Difference(run.Gradient(run.Factor(layer, "B")),
                               Scaled(Times(dw, Transposed(run.ScaledA(layer), kRank, kIn), rows,
                                            kIn, kRank),
                                      scale)),
                    tolerance);
          if (!run.has_diagonal()) continue;
          EXPECT_LT(Difference(run.Gradient(layer + ".lora_E"), de), tolerance);
        }
        EXPECT_EQ(run.allocator.live_bytes(Component::kWorkspace), 0);
      }
    }
  }
}

void ExpectFiniteDifferences(const std::string& method) {
  SCOPED_TRACE(method);
  constexpr int64_t kCount = 3;
  LayerRun run(method, {"all-linear"}, DType::kF32, true);
  const Tensor input = run.Random({kCount, LayerRun::kIn}, DType::kF32, 1);
  const std::vector<float> weights = Normal(kCount * LayerRun::kOut, 2);
  const auto loss = [&] {
    WEFT_CHECK(run.linear.Pack(run.context, Repack::kTrained).ok(), "pack");
    auto y = run.linear.Apply(run.context, Tape(nullptr), input);
    WEFT_CHECK(y.ok(), y.status().message());
    const Doubles values = AsDoubles(y->view());
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += weights[i] * values[i];
    return sum;
  };
  run.gradients->StartPass({});
  Tape tape(run.gradients.get());
  auto y = run.linear.Forward(run.context, tape, {input, Value::kNoNode});
  ASSERT_TRUE(y.ok());
  Tensor dy = run.Random({kCount, LayerRun::kOut}, DType::kF32, 2);
  ASSERT_TRUE(tape.AddGradient(run.context, y->node, dy).ok());
  ASSERT_TRUE(tape.RunBackward(run.context).ok());
  for (int64_t i = 0; i < run.parameters.size(); ++i) {
    if (run.parameters[i].frozen) continue;
    const Doubles gradient = AsDoubles(run.parameters.gradient(i));
    for (size_t k = 0; k < gradient.size(); k += 7) {
      float& value = run.parameters.value(i).As<float>()[k];
      const float before = value;
      const auto at = [&](float moved) {
        value = moved;
        return loss();
      };
      const float step = 0.25f;  // the loss is linear in each number
      const double slope = (at(before + step) - at(before - step)) / (2 * step);
      value = before;
      EXPECT_NEAR(gradient[k], slope, 2e-4 * std::max(1.0, std::fabs(slope)))
          << run.parameters[i].name << " " << k;
    }
  }
}

TEST(LoraProductsTest, AgreeWithFiniteDifferences) {
  ExpectFiniteDifferences("lora");
  ExpectFiniteDifferences("adalora");
}

}  // namespace
}  // namespace weft::engine
