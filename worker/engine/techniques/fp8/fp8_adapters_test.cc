// Adapters on a frozen network whose products are in FP8: layers against float64 with operands that
// are quantised alike, networks against bf16 and against the network without adapters.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/float8.h"
#include "kernels/quantize_fp8/quantize_fp8_ref.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/techniques/fp8/fp8_products.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/peft_products.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

constexpr int64_t kRows = 21, kIn = 32, kRank = 3;
constexpr int64_t kOutputs[2] = {16, 48}, kOut = 64;

Doubles RoundedToBf16(Doubles values) {
  for (double& value : values) value = ToFloat(ToBFloat16(static_cast<float>(value)));
  return values;
}

/// What codes of a matrix stand for that are scaled by its largest magnitude.
Doubles QuantisedToFp8(const Doubles& values, DType type) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  const float scale = LargestFloat8(type) / static_cast<float>(largest);
  return Scaled(kernels::ref::QuantizeFp8(values, scale, type), 1 / static_cast<double>(scale));
}

/// A factor as dense products in bf16 read it: without AVX-512 it is widened.
Doubles FactorAsRead(const Doubles& factor) {
  return WidensOperands(ProductsOf(DType::kBF16)) ? factor : RoundedToBf16(factor);
}

Doubles Sum(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// Multiplies each column of a matrix by its number of `factors`.
Doubles ScaledColumns(Doubles values, const Doubles& factors) {
  for (size_t i = 0; i < values.size(); ++i) values[i] *= factors[i % factors.size()];
  return values;
}

/// The columns [first, first + count) of a matrix of `columns`.
Doubles Columns(const Doubles& values, int64_t columns, int64_t first, int64_t count) {
  Doubles part;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % columns;
    if (column >= first && column < first + count) part.push_back(values[i]);
  }
  return part;
}

Fp8Spec CurrentScaling() {
  Fp8Spec spec;
  spec.scaling = "current";
  return spec;
}

PeftSpec LoraSpec(bool dora) {
  PeftSpec spec;
  spec.method = "lora";
  spec.rank = kRank;
  spec.alpha = 6;
  spec.target_modules = {"all-linear"};
  spec.use_dora = dora;
  return spec;
}

/// A frozen layer of two outputs with adapters, and what goes through it.
struct AdaptedLayer {
  Allocator allocator;
  Context context;
  ModelSpec model;
  ParameterSet parameters;
  Fp8ProductsFactory fp8;
  PeftProductsFactory adapters;
  Linear linear;
  std::unique_ptr<ParameterGradients> gradients;
  Tensor x, dy, y, dx;

  explicit AdaptedLayer(const PeftSpec& spec)
      : model(ModelOf(spec)),
        fp8(CurrentScaling(), true),
        adapters(model, nullptr),
        linear(&parameters, {{{"h.0.a", kOutputs[0]}, {"h.0.b", kOutputs[1]}}, kIn, true},
               {DType::kBF16, AroundFp8()}) {
    kernels::cpu::SetThreads(1);
    context.allocator = &allocator;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const bool magnitude =
          parameters[i].adapter != AdapterSide::kNone && parameters[i].shape.rank == 1;
      parameters.SetStart(i, {.mean = magnitude ? 1.5 : 0, .deviation = magnitude ? 0.1 : 0.3});
      if (parameters[i].adapter == AdapterSide::kNone) parameters.SetFrozen(i);
    }
    Expect(parameters.Allocate(context, true));
    Expect(adapters.Allocate(context));
    Expect(parameters.Initialize(4));
    Expect(adapters.StartPack(context, Repack::kAll));
    Expect(linear.Pack(context, Repack::kAll));
    gradients = std::make_unique<ParameterGradients>(parameters.DifferentiatedGradients());
    x = Random(kIn, 1, 20);
    dy = Random(kOut, 1e-3, 30);
  }
  static ModelSpec ModelOf(const PeftSpec& spec) {
    ModelSpec model;
    model.peft = spec;
    return model;
  }
  ProductsFactory* AroundFp8() {
    adapters.SetBase(&fp8);
    return &adapters;
  }
  static void Expect(const Status& status) { WEFT_CHECK(status.ok(), status.message()); }

  Tensor Random(int64_t columns, double deviation, uint64_t seed) {
    auto tensor = Tensor::New(context, Component::kActivations, DType::kBF16, {kRows, columns});
    Expect(tensor.status());
    const std::vector<float> values = Normal(static_cast<size_t>(kRows * columns), seed, deviation);
    std::transform(values.begin(), values.end(), tensor->view().As<BFloat16>(),
                   [](float value) { return ToBFloat16(value); });
    return *tensor;
  }

  void Run() {
    gradients->StartStep();
    gradients->StartPass({});
    Tape tape(gradients.get());
    const Value in = tape.NewValue(x, true);
    auto out = linear.Forward(context, tape, in);
    Expect(out.status());
    y = out->tensor;
    Expect(tape.AddGradient(context, out->node, dy));
    Expect(tape.RunBackward(context));
    dx = tape.TakeGradient(in.node);
    Expect(gradients->FinishPass(context));
  }

  Doubles ValueOf(const std::string& name) const {
    return AsDoubles(parameters.value(*parameters.Find(name)));
  }
  Doubles GradientOf(const std::string& name) const {
    return AsDoubles(parameters.gradient(*parameters.Find(name)));
  }
  /// Values of both outputs, one under the other.
  Doubles Stacked(const std::string& kind) const {
    Doubles all = ValueOf("h.0.a." + kind);
    for (const double value : ValueOf("h.0.b." + kind)) all.push_back(value);
    return all;
  }
};

/// What such a layer computes.
struct AdaptedReference {
  Doubles y, dx, da[2], db[2], dmagnitude;

  /// `quantises`: the operands of the base.
  AdaptedReference(const AdaptedLayer& layer, bool quantises) {
    const bool dora = layer.model.peft.use_dora;
    const double scale = LoraScale(layer.model.peft, "h.0.a.weight");
    const auto code = [&](const Doubles& values, DType type) {
      return quantises ? QuantisedToFp8(values, type) : values;
    };
    const Doubles x = AsDoubles(layer.x.view()), dy = AsDoubles(layer.dy.view());
    const Doubles weight = layer.Stacked("weight"), bias = layer.Stacked("bias");
    const Doubles w8 = code(weight, DType::kF8E4M3);
    const Doubles inner =
        Sum(Times(code(x, DType::kF8E4M3), Transposed(w8, kOut, kIn), kRows, kIn, kOut),
            OfAdapters(layer, x, scale));
    const Doubles gains = dora ? Gains(layer, weight, scale) : Doubles(kOut, 1.0);
    y = ScaledColumns(inner, gains);
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % kOut];
    const Doubles dinner = dora ? RoundedToBf16(ScaledColumns(dy, gains)) : dy;
    dx = Times(code(dinner, DType::kF8E5M2), w8, kRows, kOut, kIn);
    int64_t first = 0;
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? "h.0.a" : "h.0.b";
      const int64_t out = kOutputs[i];
      const Doubles a = FactorAsRead(layer.ValueOf(name + ".lora_A.weight"));
      const Doubles b = FactorAsRead(layer.ValueOf(name + ".lora_B.weight"));
      const Doubles own = Columns(dinner, kOut, first, out);
      const Doubles dmiddle = Scaled(Times(own, b, kRows, out, kRank), scale);
      dx = Sum(dx, Times(dmiddle, a, kRows, kRank, kIn));
      da[i] = Times(Transposed(dmiddle, kRows, kRank), x, kRank, kRows, kIn);
      const Doubles middle = Times(x, Transposed(a, kRank, kIn), kRows, kIn, kRank);
      db[i] = Scaled(Times(Transposed(own, kRows, out), middle, out, kRows, kRank), scale);
      first += out;
    }
    if (!dora) return;
    const Doubles magnitude = layer.Stacked("lora_magnitude_vector");
    dmagnitude.assign(kOut, 0.0);
    for (size_t i = 0; i < inner.size(); ++i) {
      const size_t column = i % kOut;
      dmagnitude[column] += dy[i] * inner[i] * gains[column] / magnitude[column];
    }
  }

 private:
  static Doubles OfAdapters(const AdaptedLayer& layer, const Doubles& x, double scale) {
    Doubles sum(kRows * kOut, 0.0);
    int64_t first = 0;
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? "h.0.a" : "h.0.b";
      const int64_t out = kOutputs[i];
      const Doubles a = FactorAsRead(layer.ValueOf(name + ".lora_A.weight"));
      const Doubles b = FactorAsRead(layer.ValueOf(name + ".lora_B.weight"));
      const Doubles made = Times(Times(x, Transposed(a, kRank, kIn), kRows, kIn, kRank),
                                 Transposed(b, out, kRank), kRows, kRank, out);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = 0; c < out; ++c) {
          sum[static_cast<size_t>(r * kOut + first + c)] +=
              scale * made[static_cast<size_t>(r * out + c)];
        }
      }
      first += out;
    }
    return sum;
  }

  /// The magnitudes over the lengths of the rows of the weight, which is not quantised here.
  static Doubles Gains(const AdaptedLayer& layer, const Doubles& weight, double scale) {
    Doubles gains = layer.Stacked("lora_magnitude_vector");
    Doubles rows = weight;
    int64_t first = 0;
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? "h.0.a" : "h.0.b";
      const Doubles ba = Times(layer.ValueOf(name + ".lora_B.weight"),
                               layer.ValueOf(name + ".lora_A.weight"), kOutputs[i], kRank, kIn);
      for (size_t k = 0; k < ba.size(); ++k) {
        rows[static_cast<size_t>(first * kIn) + k] += scale * ba[k];
      }
      first += kOutputs[i];
    }
    for (size_t r = 0; r < gains.size(); ++r) {
      double squares = 0;
      for (size_t c = 0; c < kIn; ++c) squares += rows[r * kIn + c] * rows[r * kIn + c];
      gains[r] /= std::sqrt(squares);
    }
    return gains;
  }
};

// Results in bf16 are rounded a few times, each number by 2^-9 of itself at most; codes are off by
// some hundredths.
TEST(Fp8Adapters, ProductsAreThoseOfAQuantisedBaseAndDenseFactors) {
  for (const bool dora : {false, true}) {
    SCOPED_TRACE(dora ? "dora" : "lora");
    AdaptedLayer layer(LoraSpec(dora));
    layer.Run();
    const AdaptedReference quantised(layer, true), plain(layer, false);
    const auto expect_fp8 = [](const char* what, const Doubles& measured, const Doubles& truth,
                               const Doubles& other) {
      SCOPED_TRACE(what);
      EXPECT_LT(Difference(measured, truth), 5e-3);
      EXPECT_GT(Difference(measured, other), 1e-2) << "it is not bf16";
    };
    expect_fp8("y", AsDoubles(layer.y.view()), quantised.y, plain.y);
    expect_fp8("dx", AsDoubles(layer.dx.view()), quantised.dx, plain.dx);
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? "h.0.a" : "h.0.b";
      EXPECT_LT(Difference(layer.GradientOf(name + ".lora_A.weight"), quantised.da[i]), 5e-3);
      EXPECT_LT(Difference(layer.GradientOf(name + ".lora_B.weight"), quantised.db[i]), 5e-3);
    }
    if (dora) {
      Doubles measured = layer.GradientOf("h.0.a.lora_magnitude_vector");
      for (const double value : layer.GradientOf("h.0.b.lora_magnitude_vector")) {
        measured.push_back(value);
      }
      EXPECT_LT(Difference(measured, quantised.dmagnitude), 5e-3);
    }
  }
}

// Frozen weights are quantised once, whatever an update has changed.
TEST(Fp8Adapters, TheBaseIsPackedOnce) {
  AdaptedLayer layer(LoraSpec(false));
  layer.Run();
  const Doubles before = AsDoubles(layer.y.view());
  const int64_t weight = *layer.parameters.Find("h.0.a.weight");
  layer.parameters.value(weight).As<float>()[0] += 8;
  ASSERT_TRUE(layer.linear.Pack(layer.context, Repack::kTrained).ok());
  layer.Run();
  EXPECT_EQ(AsDoubles(layer.y.view()), before);
  ASSERT_TRUE(layer.linear.Pack(layer.context, Repack::kAll).ok());
  layer.Run();
  EXPECT_NE(AsDoubles(layer.y.view()), before);
}

struct Method {
  const char* name;
  std::function<void(ModelSpec&)> change;
};

std::vector<Method> Methods() {
  const auto everywhere = [](ModelSpec& model) {
    model.peft.method = "lora";
    model.peft.rank = 4;
    model.peft.alpha = 8;
    model.peft.target_modules = {"all-linear"};
  };
  return {{"lora", everywhere},
          {"dora",
           [=](ModelSpec& model) {
             everywhere(model);
             model.peft.use_dora = true;
           }},
          {"lora with dropout and biases",
           [=](ModelSpec& model) {
             everywhere(model);
             model.peft.dropout = 0.1;
             if (model.family == "gpt2") model.peft.modules_to_save = {"*.bias"};
           }},
          {"adalora",
           [=](ModelSpec& model) {
             everywhere(model);
             model.peft.method = "adalora";
             model.peft.rank = PeftSpec().rank;  // it has others
             model.peft.adalora.init_r = 4;
             model.peft.adalora.target_r = 2;
           }},
          {"miss",
           [=](ModelSpec& model) {
             everywhere(model);
             model.peft.method = "miss";
           }},
          {"ia3", [](ModelSpec& model) { model.peft.method = "ia3"; }},
          {"houlsby", [](ModelSpec& model) { model.peft.method = "houlsby"; }},
          {"prefix", [](ModelSpec& model) {
             model.peft.method = "prefix";
             model.peft.num_virtual_tokens = 2;
             model.context += 2;
           }}};
}

ModelSpec NetworkOf(const std::string& family) {
  ModelSpec model = TinyModel();
  model.family = family;
  if (family == "llama") model.mlp_width = 48;
  return model;
}

TEST(Fp8Adapters, StartAsTheNetworkBitForBit) {
  auto batch = RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(3, 0, 2);
  ASSERT_TRUE(batch.ok());
  for (const char* family : {"gpt2", "llama"}) {
    for (const Method& method : Methods()) {
      const std::string name = method.name;
      if (name != "lora" && name != "miss" && name != "ia3") continue;
      SCOPED_TRACE(std::string(family) + " " + name);
      ModelSpec model = NetworkOf(family);
      TinyRun plain(model, ModelOptionsOf(TinyPlan("fp8")));
      RoundMatrices(plain);
      method.change(model);
      TinyRun run(model, ModelOptionsOf(TinyPlan("fp8")));
      EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch));
    }
  }
}

// Roundings to FP8 change the losses of so small networks by some thousandths, and what is learned
// by a few hundredths of it.
TEST(Fp8Adapters, TrainThemselvesAloneAndFollowBf16) {
  CountingTokens tokens(7, 16);
  for (const char* family : {"gpt2", "llama"}) {
    for (const Method& method : Methods()) {
      SCOPED_TRACE(std::string(family) + " " + method.name);
      JobSpec job = TinyJob(4);
      job.model = NetworkOf(family);
      method.change(job.model);
      job.train.sequence_length = 16;
      job.schedule.kind = "constant";
      job.optimizer.learning_rate = 3e-3;
      TinyTraining in_bf16(job, TinyPlan("bf16"), tokens);
      job.train.precision = "fp8";
      TinyTraining in_fp8(job, TinyPlan("fp8"), tokens);
      const ParameterSet& parameters = in_fp8.model->parameters();
      const std::vector<std::vector<float>> before = ValuesOf(parameters);
      for (int step = 0; step < 10; ++step) {
        EXPECT_NEAR(in_fp8.Step().loss, in_bf16.Step().loss, 0.05) << step;
      }
      const std::vector<std::vector<float>> after = ValuesOf(parameters);
      for (int64_t i = 0; i < parameters.size(); ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_EQ(after[at] == before[at], parameters[i].frozen) << parameters[i].name;
      }
    }
  }
}

/// LoRA on all layers of a network of five blocks in FP8.
MeshCase LoraMesh() {
  ModelSpec model = LlamaModel();
  model.layers = 5;
  model.heads = 4;
  model.mlp_width = 96;
  model.peft = LoraSpec(false);
  MeshCase c = CaseOf(model, "ring", 1, 1, "keep", "fp8");
  c.job.train.fp8.history = 4;
  c.job.train.gradient_clip_norm = 0;
  c.job.train.steps = 6;
  c.job.optimizer.learning_rate = 1e-3;
  return c;
}

TEST(Fp8Adapters, StagesOfAPipelineHaveTheBitsOfOneRank) {
  const MeshOutcome whole = TrainOnMesh(LoraMesh()).front();
  EXPECT_TRUE(whole.state.tensors.contains("fp8/scales"));
  for (const char* schedule : {"1f1b", "zero_bubble"}) {
    SCOPED_TRACE(schedule);
    const std::vector<MeshOutcome> ranks = TrainOnMesh(WithStages(LoraMesh(), {3, 2}, schedule));
    ExpectFollows(ranks, whole, 1e-12, 1e-6);
  }
}

// Scales are those of one rank, and partial sums are rounded to bf16.
TEST(Fp8Adapters, TensorParallelRanksFollowOneRank) {
  const MeshOutcome whole = TrainOnMesh(LoraMesh()).front();
  for (const bool sequence : {false, true}) {
    SCOPED_TRACE(sequence);
    for (const MeshOutcome& rank : TrainOnMesh(WithTensor(LoraMesh(), 2, sequence))) {
      ASSERT_EQ(rank.reports.size(), whole.reports.size());
      for (size_t step = 0; step < whole.reports.size(); ++step) {
        EXPECT_NEAR(rank.reports[step].loss, whole.reports[step].loss, 0.02) << step;
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
