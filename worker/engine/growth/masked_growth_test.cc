// Growth by msg: what masks hide changes nothing, and rises to the plain network.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/growth/testing.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kRamp = 4;
// Sums of a few hundred f32 products, which growth cuts elsewhere.
constexpr double kRounding = 1e-5;

void Llama(ModelSpec& model) {
  model.family = "llama";
  model.head_width = 8;
}

const std::vector<Variant>& Variants() {
  static const auto* const variants = new std::vector<Variant>(VariantsWith({
      {"gpt2, norms after sums", [](ModelSpec& m) { m.norm_position = "post"; }},
      {"gpt2, no norms", [](ModelSpec& m) { m.norm_position = "none"; }},
      {"gpt2, squared ReLU", [](ModelSpec& m) { m.activation = "squared_relu"; }},
      {"llama", Llama},
      {"llama, shared keys and values",
       [](ModelSpec& m) {
         Llama(m);
         m.kv_heads = m.heads / 2;
         m.qkv_bias = true;
       }},
      {"llama, one head of keys and values",
       [](ModelSpec& m) {
         Llama(m);
         m.kv_heads = 1;
       }},
  }));
  return *variants;
}

/// Of two blocks, four heads of 8 columns and an MLP of 48.
ModelSpec Small(const Variant& variant) {
  ModelSpec model = TinyModel();
  model.width = 32;
  model.heads = 4;
  model.mlp_width = 48;
  variant.change(model);
  return model;
}

/// What may grow; heads follow the width where they must.
const Variant kDimensions[] = {
    {"width",
     [](ModelSpec& m) {
       m.width = 48;
       if (m.family != "llama") m.heads = 6;
     }},
    {"heads",
     [](ModelSpec& m) {
       const int64_t group = m.kv_heads > 1 ? m.heads / m.kv_heads : 1;
       m.heads = 6;
       if (m.family != "llama") m.width = 48;
       if (m.kv_heads > 1) m.kv_heads = 6 / group;
     }},
    {"mlp_width", [](ModelSpec& m) { m.mlp_width = 100; }},
    {"layers", [](ModelSpec& m) { m.layers = 5; }},
    {"all",
     [](ModelSpec& m) {
       const int64_t group = m.kv_heads > 1 ? m.heads / m.kv_heads : 1;
       m.width = 64;
       m.heads = 8;
       m.mlp_width = 160;
       m.layers = 3;
       if (m.kv_heads > 1) m.kv_heads = 8 / group;
     }},
};

MaskedGrowth GrowthFrom(const ModelSpec& before) {
  MaskedGrowth growth{before, Method("msg")};
  growth.growth.ramp_steps = kRamp;
  return growth;
}

/// A network with these numbers, with the masks of a step or plain.
class Network {
 public:
  Network(const ModelSpec& spec, const TensorsByName& tensors,
          std::optional<MaskedGrowth> growth = std::nullopt, int64_t step = 0)
      : run_(spec, Options(std::move(growth))) {
    ParameterSet& parameters = run_.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const std::vector<double>& values = tensors.at(parameters[i].name);
      std::copy(values.begin(), values.end(), parameters.value(i).As<float>());
    }
    WEFT_CHECK(run_.model->Pack(run_.context).ok(), "pack");
    Mask(step);
  }

  void Mask(int64_t step) {
    for (const auto& technique : run_.model->techniques()) {
      WEFT_CHECK(technique->BeforeForward(run_.context, step).ok(), "mask");
    }
  }
  std::vector<float> Logits() { return run_.Logits(Batch()); }
  TinyRun& run() { return run_; }
  weft::engine::Batch Batch() {
    const ModelSpec& spec = run_.model->spec();
    if (spec.family == "vit") return *NoiseImages(spec).Get(0, 0, 3);
    if (spec.classes > 0) return *RandomLabelled(spec.vocab_size, 16, spec.classes).Get(0, 0, 3);
    if (spec.family == "bert") return *RandomMasked(spec.vocab_size, 16, 0.5).Get(0, 0, 2);
    return *RandomTokens(spec.vocab_size, 16).Get(0, 0, 2);
  }

 private:
  static ModelOptions Options(std::optional<MaskedGrowth> growth) {
    ModelOptions options;
    options.precision = &kFp32Precision;
    options.growth = std::move(growth);
    return options;
  }

  TinyRun run_;
};

/// The largest difference, as a share of the largest logit.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
    largest = std::max(largest, std::abs(static_cast<double>(a[i])));
  }
  return difference / largest;
}

/// Calls check(before, now, tensors of before, tensors of now), which new parts of are ten times as
/// large, for all variants and dimensions.
void ForEachGrowth(
    const std::function<void(const ModelSpec&, const ModelSpec&, const TensorsByName&,
                             const TensorsByName&, const GrowthSpec&)>& check) {
  for (const Variant& variant : Variants()) {
    for (const Variant& dimension : kDimensions) {
      for (const char* blocks : {"copy", "random"}) {
        const ModelSpec before = Small(variant);
        ModelSpec now = before;
        dimension.change(now);
        if (now.layers == before.layers && std::string(blocks) == "random") continue;
        SCOPED_TRACE(std::string(variant.name) + ", " + dimension.name + ", " + blocks);
        GrowthSpec growth = GrowthFrom(before).growth;
        growth.new_blocks = blocks;
        const TensorsByName tensors = RandomTensors(before, 21);
        TensorsByName large = RandomTensors(now, 22);
        // Without norms the plain network would overflow.
        const double factor = NormPositionOf(now) == "none" ? 1 : 10;
        for (auto& [name, values] : large) {
          for (double& value : values) value *= factor;
        }
        check(before, now, tensors, Grown(before, now, growth, tensors, large), growth);
      }
    }
  }
}

TEST(MaskedGrowth, KeepsTheLogitsWhateverIsAdded) {
  ForEachGrowth([](const ModelSpec& before, const ModelSpec& now, const TensorsByName& tensors,
                   const TensorsByName& grown, const GrowthSpec&) {
    const std::vector<float> logits = Network(before, tensors).Logits();
    EXPECT_LT(Distance(logits, Network(now, grown, GrowthFrom(before)).Logits()), kRounding);
    EXPECT_GT(Distance(logits, Network(now, grown).Logits()), 1000 * kRounding)
        << "what is added would be seen";
  });
}

TEST(MaskedGrowth, KeepsTheLogitsWhereBlocksAreAddedAfterTheLastOne) {
  const ModelSpec before = Small(Variants()[0]);
  ModelSpec now = before;
  now.layers = 5;
  MaskedGrowth growth = GrowthFrom(before);
  growth.growth.depth_order = "stacked";
  const TensorsByName tensors = RandomTensors(before, 23);
  const TensorsByName grown = Grown(before, now, growth.growth, tensors, RandomTensors(now, 24));
  EXPECT_LT(Distance(Network(before, tensors).Logits(), Network(now, grown, growth).Logits()),
            kRounding);
}

TEST(MaskedGrowth, EndsAsThePlainNetworkBitForBit) {
  ForEachGrowth([](const ModelSpec& before, const ModelSpec& now, const TensorsByName&,
                   const TensorsByName& grown, const GrowthSpec&) {
    Network masked(now, grown, GrowthFrom(before), kRamp), plain(now, grown);
    EXPECT_EQ(masked.Logits(), plain.Logits());
    masked.Mask(kRamp - 1);
    EXPECT_NE(masked.Logits(), plain.Logits());
  });
}

TEST(MaskedGrowth, GradientsAreThoseOfFiniteDifferences) {
  ForEachGrowth([](const ModelSpec& before, const ModelSpec& now, const TensorsByName&,
                   const TensorsByName&, const GrowthSpec& growth) {
    if (growth.new_blocks != "copy") return;  // all numbers are others here
    TensorsByName tensors = RandomTensors(now, 25);
    for (auto& [name, values] : tensors) {
      // Without norms small steps would have large effects.
      for (double& value : values) value *= NormPositionOf(now) == "none" ? 0.3 : 1;
    }
    Network network(now, tensors, GrowthFrom(before), 1);
    TinyRun& run = network.run();
    const Batch batch = network.Batch();
    run.Differentiate(batch);
    ParameterSet& parameters = run.model->parameters();
    PhiloxStream random(PhiloxKey{26, 0, 0});
    for (int64_t p = 0; p < parameters.size(); ++p) {
      const TensorView view = parameters.value(p);
      const int64_t count = view.shape.Elements();
      const auto* gradient = parameters.gradient(p).As<float>();
      const std::vector<float> start(view.As<float>(), view.As<float>() + count);
      double norm = 0, along = 0;
      for (int64_t i = 0; i < count; ++i) norm += std::pow(gradient[i], 2);
      if (norm == 0) continue;
      std::vector<double> direction;
      for (int64_t i = 0; i < count; ++i) {
        // Half along the gradient, so that there is a slope to see, half anywhere.
        direction.push_back(gradient[i] / std::sqrt(norm) +
                            random.Normal() / std::sqrt(static_cast<double>(count)));
        along += direction.back() * gradient[i];
      }
      constexpr double kStep = 1e-3;
      double loss[2];
      for (const int side : {0, 1}) {
        for (int64_t i = 0; i < count; ++i) {
          const double moved = (side == 0 ? -kStep : kStep) * direction[static_cast<size_t>(i)];
          view.As<float>()[i] = start[static_cast<size_t>(i)] + static_cast<float>(moved);
        }
        ASSERT_TRUE(run.model->Pack(run.context).ok());
        loss[side] = run.Loss(batch);
      }
      std::copy(start.begin(), start.end(), view.As<float>());
      EXPECT_NEAR((loss[1] - loss[0]) / (2 * kStep), along, 0.02 * std::abs(along) + 0.05)
          << parameters[p].name;
    }
  });
}

// Without norms and with a classifier of its own, logits are linear in the residual stream.
TEST(MaskedGrowth, ABlockPassesOnItsShare) {
  ModelSpec before = Small({"", [](ModelSpec& m) {
                              m.norm_position = "none";
                              m.untied_classifier = true;
                              m.layers = 0;
                            }});
  ModelSpec now = before;
  now.layers = 1;
  Network network(now, RandomTensors(now, 27), GrowthFrom(before));
  const std::vector<float> none = network.Logits();
  network.Mask(kRamp);
  const std::vector<float> all = network.Logits();
  network.Mask(1);
  std::vector<float> mixed;
  for (size_t i = 0; i < all.size(); ++i) mixed.push_back(0.75f * none[i] + 0.25f * all[i]);
  EXPECT_LT(Distance(mixed, network.Logits()), kRounding);
  EXPECT_GT(Distance(none, all), 1000 * kRounding);
}

double SumOfMagnitudes(const TensorsByName& tensors) {
  double sum = 0;
  for (const auto& [name, values] : tensors) {
    for (const double value : values) sum += std::abs(value);
  }
  return sum;
}

TEST(MaskedGrowth, MomentsOfWhatWasThereStayAndOthersAreZero) {
  const ModelSpec before = Small(Variants()[0]);
  ModelSpec wide = before;
  wide.width = 48;
  wide.heads = 6;
  ModelSpec deep = wide;
  deep.layers = 3;
  const TensorsByName moments = RandomTensors(before, 28);
  GrowthSpec asymmetric = Method("fpi");
  asymmetric.optimizer_state = "asymmetric";
  for (const auto& [growth, now] :
       {std::pair{Method("msg"), deep}, {asymmetric, deep}, {Method("sparkling"), wide}}) {
    for (const GrownNumbers numbers : {GrownNumbers::kGradients, GrownNumbers::kSquaredGradients}) {
      const TensorsByName grown = Grown(before, now, growth, moments, {}, numbers);
      EXPECT_NEAR(SumOfMagnitudes(grown), SumOfMagnitudes(moments), 1e-9);
      const std::vector<double>&table = grown.at("transformer.wte.weight"),
            &old = moments.at("transformer.wte.weight");
      EXPECT_EQ(table[0], old[0]);
      EXPECT_EQ(table[32], 0) << "an added column";
      EXPECT_EQ(table[48], old[32]) << "the next row";
    }
  }
}

}  // namespace
}  // namespace weft::engine
