// Products with merged weights against float64 and its slopes.
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/merging_testing.h"
#include "worker/engine/techniques/peft/peft_products.h"
#include "worker/engine/testing/float64_matrices.h"

namespace weft::engine {
namespace {

constexpr int64_t kIn = 24, kRows[2] = {16, 40}, kOut = 56;

/// A layer with two outputs and a frozen base. What vera shares is made for these alone.
struct LayerRun {
  Allocator allocator;
  Context context;
  ModelSpec model;
  ParameterSet parameters;
  PeftProductsFactory factory;
  std::unique_ptr<Linear> linear;
  std::unique_ptr<ParameterGradients> gradients;

  LayerRun(const ModelSpec& spec, DType compute, bool bias, DType matrices = DType::kF32)
      : model(spec), factory(model, nullptr) {
    kernels::cpu::SetThreads(1);
    context.allocator = &allocator;
    if (model.peft.method == "vera") {
      parameters.Register(kVeraA, {3, kIn + 2}, ParameterRole::kMlpUp);
      parameters.Register(kVeraB, {kOut, 3}, ParameterRole::kMlpUp);
    }
    factory.SetParameters(&parameters);
    linear = std::make_unique<Linear>(
        &parameters, LinearOptions{{{"h.0.a", kRows[0]}, {"h.0.b", kRows[1]}}, kIn, bias},
        ProductOptions(compute, &factory));
    for (int64_t i = 0; i < parameters.size(); ++i) {
      parameters.SetStart(i, {.deviation = model.peft.method == "oft" ? 0.1 : 0.3});
      if (parameters[i].adapter == AdapterSide::kNone) parameters.SetFrozen(i);
    }
    WEFT_CHECK(parameters.Allocate(context, true, matrices).ok(), "allocate");
    WEFT_CHECK(parameters.Initialize(4).ok(), "initialize");
    WEFT_CHECK(linear->Pack(context, Repack::kAll).ok(), "pack");
    gradients = std::make_unique<ParameterGradients>(parameters.DifferentiatedGradients());
    gradients->StartStep();
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
  bool Has(const std::string& name) const { return parameters.Find(name).ok(); }
};

/// A tensor of an adapter of a layer, by the end of its name.
using Tensors = std::function<Doubles(const std::string&)>;

Doubles MultiplyEach(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

/// The rotation of one block, by its definition.
Doubles RotationOf(const double* above, int64_t size) {
  Doubles q(static_cast<size_t>(size * size), 0.0), r(q.size(), 0.0);
  for (int64_t i = 0; i < size; ++i) {
    r[i * size + i] = 1;
    for (int64_t j = i + 1; j < size; ++j, ++above) {
      q[i * size + j] = *above;
      q[j * size + i] = -*above;
    }
  }
  Doubles power = q;
  for (const double coefficient : {2.0, 2.0, 2.0, 1.0}) {
    for (size_t e = 0; e < r.size(); ++e) r[e] += coefficient * power[e];
    power = Times(power, q, size, size, size);
  }
  return r;
}

/// W' of an output of LayerRun, in float64.
Doubles Merged(const LayerRun& run, const std::string& layer, int64_t out, const Tensors& tensor) {
  const PeftSpec& spec = run.model.peft;
  Doubles weight = run.Value(layer + ".weight");
  if (spec.method == "oft") {
    const int64_t size = spec.oft_block_size;
    const Doubles above = tensor("oft_R.weight");
    Doubles merged(weight.size(), 0.0);
    for (int64_t block = 0; block < kIn / size; ++block) {
      const Doubles r = RotationOf(above.data() + block * size * (size - 1) / 2, size);
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < size; ++i) {
          for (int64_t j = 0; j < size; ++j) {
            merged[o * kIn + block * size + i] +=
                weight[o * kIn + block * size + j] * r[i * size + j];
          }
        }
      }
    }
    return merged;
  }
  Doubles delta(weight.size(), 0.0);
  if (spec.method == "loha") {
    const auto product = [&](const char* a, const char* b) {
      return Times(tensor(a), tensor(b), out, spec.rank, kIn);
    };
    delta = MultiplyEach(product("hada_w1_a", "hada_w1_b"), product("hada_w2_a", "hada_w2_b"));
  } else if (spec.method == "lokr") {
    ParameterInfo info;
    info.name = layer + ".weight";
    info.shape = {out, kIn};
    const KroneckerSizes size = KroneckerOf(spec, info);
    const auto factor = [&](size_t i) {
      const std::string name = "lokr_w" + std::to_string(i + 1);
      if (!size.factored[i]) return tensor(name);
      return Times(tensor(name + "_a"), tensor(name + "_b"), size.out[i], size.rank, size.in[i]);
    };
    const Doubles first = factor(0), second = factor(1);
    for (int64_t i = 0; i < out; ++i) {
      for (int64_t j = 0; j < kIn; ++j) {
        delta[i * kIn + j] = first[i / size.out[1] * size.in[0] + j / size.in[1]] *
                             second[i % size.out[1] * size.in[1] + j % size.in[1]];
      }
    }
  } else {
    const Doubles a = run.Value(kVeraA), b = run.Value(kVeraB);
    const Doubles rows = tensor("vera_lambda_b"), ranks = tensor("vera_lambda_d");
    for (int64_t i = 0; i < out; ++i) {
      for (int64_t j = 0; j < kIn; ++j) {
        for (int64_t k = 0; k < 3; ++k) {
          delta[i * kIn + j] += rows[i] * b[i * 3 + k] * ranks[k] * a[k * (kIn + 2) + j];
        }
      }
    }
  }
  const double scale = spec.method == "vera" ? 1 : spec.alpha / static_cast<double>(spec.rank);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] += scale * delta[i];
  return weight;
}

/// The tensors of an adapter of `layer`, as they are except a number of one of them.
Tensors TensorsOf(const LayerRun& run, const std::string& layer, const std::string& moved = "",
                  size_t at = 0, double by = 0) {
  return [=, &run](const std::string& end) {
    Doubles value = run.Value(layer + "." + end);
    if (end == moved) value[at] += by;
    return value;
  };
}

TEST(MergedProductsTest, HaveTheResultsAndGradientsOfTheDefinitions) {
  constexpr int64_t kCount = 5;
  for (const MergingMethod& method : MergingMethods()) {
    for (const std::vector<std::string>& targets :
         std::vector<std::vector<std::string>>{{"all-linear"}, {"b"}}) {
      for (const bool bias : {false, true}) {
        for (const DType compute : {DType::kF32, DType::kBF16}) {
          SCOPED_TRACE(std::string(method.name) + " " + targets[0] + (bias ? " biased " : " ") +
                       std::string(DTypeName(compute)));
          const double tolerance = compute == DType::kF32 ? 2e-6 : 2e-2;
          LayerRun run(MergingModel(method, targets), compute, bias);
          Doubles weight, biases;
          std::vector<std::string> adapted;
          for (int64_t i = 0; i < 2; ++i) {
            const std::string layer = i == 0 ? "h.0.a" : "h.0.b";
            const bool target = i == 1 || targets[0] == "all-linear";
            if (target) adapted.push_back(layer);
            const Doubles own = target ? Merged(run, layer, kRows[i], TensorsOf(run, layer))
                                       : run.Value(layer + ".weight");
            weight.insert(weight.end(), own.begin(), own.end());
            if (!bias) continue;
            for (const double b : run.Value(layer + ".bias")) biases.push_back(b);
          }
          Doubles dweight(weight.size(), 0.0);
          // Twice: the second pass adds.
          for (uint64_t pass = 0; pass < 2; ++pass) {
            run.gradients->StartPass({});
            Tape tape(run.gradients.get());
            const Value x = tape.NewValue(run.Random({kCount, kIn}, compute, 20 + pass), true);
            auto y = run.linear->Forward(run.context, tape, x);
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
          // Slopes of the definitions in float64, number by number, along dW'.
          for (const std::string& layer : adapted) {
            const bool first = layer == "h.0.a";
            const int64_t rows = kRows[first ? 0 : 1];
            const auto begin = dweight.begin() + (first ? 0 : kRows[0] * kIn);
            const Doubles dw(begin, begin + rows * kIn);
            for (int64_t i = 0; i < run.parameters.size(); ++i) {
              if (run.parameters[i].adapter_of != layer + ".weight") continue;
              const std::string end = run.parameters[i].name.substr(layer.size() + 1);
              const Doubles gradient = AsDoubles(run.parameters.gradient(i));
              Doubles slopes(gradient.size());
              for (size_t k = 0; k < slopes.size(); ++k) {
                constexpr double kStep = 1e-4;
                const Doubles up = Merged(run, layer, rows, TensorsOf(run, layer, end, k, kStep));
                const Doubles down =
                    Merged(run, layer, rows, TensorsOf(run, layer, end, k, -kStep));
                for (size_t e = 0; e < dw.size(); ++e) {
                  slopes[k] += dw[e] * (up[e] - down[e]) / (2 * kStep);
                }
              }
              EXPECT_LT(Difference(gradient, slopes), tolerance) << run.parameters[i].name;
            }
          }
          EXPECT_EQ(run.allocator.live_bytes(Component::kWorkspace), 0);
        }
      }
    }
  }
}

TEST(MergedProductsTest, TensorsAndWeightsMayBeNarrow) {
  for (const MergingMethod& method : MergingMethods()) {
    SCOPED_TRACE(method.name);
    LayerRun run(MergingModel(method), DType::kBF16, true, DType::kBF16);
    const Tensor x = run.Random({4, kIn}, DType::kBF16, 3);
    auto y = run.linear->Apply(run.context, Tape(nullptr), x);
    ASSERT_TRUE(y.ok()) << y.status().message();
    Doubles weight, biases;
    for (const auto& [layer, rows] : {std::pair{"h.0.a", kRows[0]}, {"h.0.b", kRows[1]}}) {
      const Doubles own = Merged(run, layer, rows, TensorsOf(run, layer));
      weight.insert(weight.end(), own.begin(), own.end());
      for (const double b : run.Value(std::string(layer) + ".bias")) biases.push_back(b);
    }
    Doubles expected = Times(AsDoubles(x.view()), Transposed(weight, kOut, kIn), 4, kIn, kOut);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += biases[i % kOut];
    EXPECT_LT(Difference(AsDoubles(y->view()), expected), 2e-2);
  }
}

}  // namespace
}  // namespace weft::engine
