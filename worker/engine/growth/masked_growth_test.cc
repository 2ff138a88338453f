// Growth by msg: what masks hide changes nothing, in float64 and in the engine, and rises to the
// plain network.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/growth/networks_testing.h"
#include "worker/engine/growth/testing.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/testing/parameter_values.h"
#include "worker/engine/testing/tiny_run.h"

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

/// A model of two blocks, four heads of 8 columns and an MLP of 48.
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
    SetValues(run_, tensors);
    Mask(step);
  }

  void Mask(int64_t step) {
    for (const auto& technique : run_.model->techniques()) {
      WEFT_CHECK(technique->BeforeForward(run_.context, step).ok(), "mask");
    }
  }
  std::vector<float> Logits() { return run_.Logits(BatchFor(run_.model->spec())); }
  TinyRun& run() { return run_; }

 private:
  static ModelOptions Options(std::optional<MaskedGrowth> growth) {
    ModelOptions options;
    options.precision = &kFp32Precision;
    options.growth = std::move(growth);
    return options;
  }

  TinyRun run_;
};

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
    EXPECT_LT(Distance(Network(now, grown, GrowthFrom(before)).Logits(), logits), kRounding);
    EXPECT_GT(Distance(Network(now, grown).Logits(), logits), 1000 * kRounding)
        << "what is added would be seen";
    EXPECT_LT(Distance(float64::LogitsOf(now, grown, GrowthFrom(before)),
                       float64::LogitsOf(before, tensors)),
              1e-12);
  });
}

/// Random numbers for all parameters, smaller ones where no norms keep sums from growing.
TensorsByName PlainNumbers(const ModelSpec& model, uint32_t seed) {
  TensorsByName tensors = RandomTensors(model, seed);
  if (NormPositionOf(model) != "none") return tensors;
  for (auto& [name, values] : tensors) {
    for (double& value : values) value *= 0.3;
  }
  return tensors;
}

TEST(MaskedGrowth, TheEngineFollowsTheFormulas) {
  ForEachGrowth([](const ModelSpec& before, const ModelSpec& now, const TensorsByName&,
                   const TensorsByName&, const GrowthSpec& growth) {
    if (growth.new_blocks != "copy") return;  // all numbers are others here
    const TensorsByName tensors = PlainNumbers(now, 29);
    constexpr int64_t kStep = 1;
    // Attention scores of up to 50 in f32, of sums of 64 products.
    EXPECT_LT(Distance(Network(now, tensors, GrowthFrom(before), kStep).Logits(),
                       float64::LogitsOf(now, tensors, GrowthFrom(before), kStep)),
              1e-4);
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
  EXPECT_LT(Distance(Network(now, grown, growth).Logits(), Network(before, tensors).Logits()),
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
    Network network(now, PlainNumbers(now, 25), GrowthFrom(before), 1);
    TinyRun& run = network.run();
    const Batch batch = BatchFor(now);
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
  EXPECT_LT(Distance(network.Logits(), mixed), kRounding);
  EXPECT_GT(Distance(none, all), 1000 * kRounding);
}

/// A growth of Small(Variants()[0]).
struct GrowthTo {
  GrowthSpec growth;
  ModelSpec now;
};

/// Those in which moments of what is new are zero.
std::vector<GrowthTo> GrowthsInPlace() {
  ModelSpec wide = Small(Variants()[0]);
  wide.width = 48;
  wide.heads = 6;
  ModelSpec deep = wide;
  deep.layers = 3;
  GrowthSpec asymmetric = Method("fpi");
  asymmetric.optimizer_state = "asymmetric";
  return {{Method("msg"), deep}, {asymmetric, deep}, {Method("sparkling"), wide}};
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
  const TensorsByName moments = RandomTensors(before, 28);
  for (const auto& [growth, now] : GrowthsInPlace()) {
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

struct Moments {
  TensorsByName first, second;
};

/// What `optimizer` makes of the numbers of a network in its eleventh update, which has gradients
/// of zero.
TensorsByName UpdatedWithoutGradients(const ModelSpec& model, const TensorsByName& tensors,
                                      const std::string& optimizer, const Moments& moments,
                                      double weight_decay = 0) {
  ModelOptions options;
  options.precision = &kFp32Precision;
  TinyRun run(model, options);
  SetValues(run, tensors);
  ParameterSet& parameters = run.model->parameters();
  OptimizerSpec spec;
  spec.name = optimizer;
  spec.weight_decay = weight_decay;
  const auto rule = NewOptimizer(run.context, spec, &parameters, DType::kF32);
  WEFT_CHECK(rule.ok(), rule.status().message());
  for (const NamedTensor& state : (*rule)->StateTensors()) {
    const TensorsByName& of_kind =
        state.moment == MomentKind::kSecond ? moments.second : moments.first;
    const std::vector<double>& values = of_kind.at(parameters[state.parameter].name);
    std::copy(values.begin(), values.end(), state.view.As<float>());
  }
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const TensorView gradient = parameters.gradient(i);
    std::fill_n(gradient.As<float>(), gradient.shape.Elements(), 0.0f);
  }
  const Status updated = (*rule)->Update(run.context, {.learning_rate = 0.01, .update = 11});
  WEFT_CHECK(updated.ok(), updated.message());
  TensorsByName after;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const std::vector<float> values = ValuesOf(parameters.value(i));
    after[parameters[i].name] = {values.begin(), values.end()};
  }
  return after;
}

// Momentum moves what had a gradient before growth, and nothing else.
TEST(MaskedGrowth, AStepWithoutGradientsLeavesWhatIsNewAsItIs) {
  const ModelSpec before = Small(Variants()[0]);
  const TensorsByName tensors = RandomTensors(before, 31);
  Moments moments{RandomTensors(before, 32), RandomTensors(before, 33)};
  for (auto& [name, values] : moments.second) {
    for (double& value : values) value = value * value + 0.01;
  }
  for (const char* optimizer : {"adamw", "lion", "sgd", "lars"}) {
    TensorsByName moves = UpdatedWithoutGradients(before, tensors, optimizer, moments);
    for (auto& [name, values] : moves) {
      for (size_t i = 0; i < values.size(); ++i) values[i] -= tensors.at(name)[i];
    }
    for (const auto& [growth, now] : GrowthsInPlace()) {
      SCOPED_TRACE(std::string(optimizer) + ", " + growth.method);
      const TensorsByName large = RandomTensors(now, 34);
      const TensorsByName grown = Grown(before, now, growth, tensors, large);
      const Moments kept{
          Grown(before, now, growth, moments.first, {}, GrownNumbers::kGradients),
          Grown(before, now, growth, moments.second, {}, GrownNumbers::kSquaredGradients)};
      const TensorsByName after = UpdatedWithoutGradients(now, grown, optimizer, kept);
      // Old weights move as they would have, by as much as msg has them in the same places.
      const TensorsByName move =
          Grown(before, now, Method("msg"), moves, {}, GrownNumbers::kGradients);
      int64_t changed = 0;
      for (const auto& [name, values] : grown) {
        for (size_t i = 0; i < values.size(); ++i) {
          const auto start = static_cast<float>(values[i]);
          ASSERT_NEAR(after.at(name)[i], start + move.at(name)[i], 1e-6) << name << " " << i;
          changed += after.at(name)[i] != start ? 1 : 0;
          if (kept.first.at(name)[i] == 0) {
            ASSERT_EQ(after.at(name)[i], start) << name << " " << i;
          }
        }
      }
      EXPECT_GT(changed, 0);
      // Decay shrinks matrices, old and new numbers alike, and does nothing else.
      const TensorsByName decayed = UpdatedWithoutGradients(now, grown, optimizer, kept, 0.1);
      for (const ParameterInfo& parameter : ParametersOf(now)) {
        const double share = parameter.shape.size() > 1 ? 0.01 * 0.1 : 0;
        const std::vector<double>&start = grown.at(parameter.name), &end = after.at(parameter.name);
        for (size_t i = 0; i < start.size(); ++i) {
          ASSERT_NEAR(decayed.at(parameter.name)[i], end[i] - share * start[i], 1e-6) << i;
        }
      }
    }
  }
}

/// Those in which copies have the moments of their originals; sub-layers of the last one's new
/// block end in zeros.
std::vector<GrowthTo> GrowthsThatKeepState() {
  ModelSpec large = Small(Variants()[0]), deep = large;
  large.width *= 2;
  large.heads *= 2;
  large.mlp_width *= 2;
  large.layers *= 2;
  deep.layers = 3;
  GrowthSpec decoalesce = Method("decoalesce"), stack = Method("stack"), silent = Method("stack");
  decoalesce.optimizer_state = stack.optimizer_state = silent.optimizer_state = "kept";
  silent.new_blocks = "identity";
  return {{Method("fpi"), large}, {decoalesce, large}, {stack, deep}, {silent, deep}};
}

// Kept momentum moves copies as it would have moved their originals: as far, where the rule divides
// by the size of the moments, else by their share of the gradient.
TEST(MaskedGrowth, AStepWithoutGradientsMovesCopiesAsItWouldHaveMovedTheirOriginals) {
  const ModelSpec before = Small(Variants()[0]);
  const TensorsByName tensors = RandomTensors(before, 41);
  Moments moments{RandomTensors(before, 42), RandomTensors(before, 43)};
  for (auto& [name, values] : moments.second) {
    for (double& value : values) value = value * value + 0.01;
  }
  TensorsByName ones = tensors;
  for (auto& [name, values] : ones) std::fill(values.begin(), values.end(), 1.0);
  for (const GrowthTo& each : GrowthsThatKeepState()) {
    const auto grown_state = [&](const TensorsByName& of, GrownNumbers numbers) {
      return Grown(before, each.now, each.growth, of, {}, numbers);
    };
    const TensorsByName grown =
        Grown(before, each.now, each.growth, tensors, RandomTensors(each.now, 44));
    const Moments kept{grown_state(moments.first, GrownNumbers::kGradients),
                       grown_state(moments.second, GrownNumbers::kSquaredGradients)};
    const TensorsByName shares = grown_state(ones, GrownNumbers::kGradients);
    for (const char* optimizer : {"adam", "adamw", "lion", "sgd", "lars"}) {
      SCOPED_TRACE(std::string(optimizer) + ", " + each.growth.method + " " +
                   each.growth.new_blocks);
      TensorsByName moves = UpdatedWithoutGradients(before, tensors, optimizer, moments);
      for (auto& [name, values] : moves) {
        for (size_t i = 0; i < values.size(); ++i) values[i] -= tensors.at(name)[i];
      }
      const TensorsByName shared = grown_state(moves, GrownNumbers::kGradients);
      const TensorsByName after = UpdatedWithoutGradients(each.now, grown, optimizer, kept);
      const bool linear = optimizer == std::string("sgd") || optimizer == std::string("lars");
      for (const auto& [name, values] : grown) {
        const std::vector<double>&end = after.at(name), &all = shared.at(name),
              &share = shares.at(name);
        for (size_t i = 0; i < values.size(); ++i) {
          const auto start = static_cast<float>(values[i]);
          if (share[i] == 0) {
            ASSERT_EQ(end[i], start) << name << " " << i;
          } else {
            ASSERT_NEAR(end[i], start + all[i] / (linear ? 1 : share[i]), 1e-6) << name << " " << i;
          }
        }
      }
    }
  }
}

// Rules that look at whole matrices: what has no momentum stays, whatever moves around it.
TEST(MaskedGrowth, AStepWithoutGradientsLeavesWhatHasNoMomentumAsItIs) {
  const ModelSpec before = Small(Variants()[0]);
  const TensorsByName tensors = RandomTensors(before, 51);
  Moments moments{RandomTensors(before, 52), RandomTensors(before, 53)};
  for (auto& [name, values] : moments.second) {
    for (double& value : values) value = value * value + 0.01;
  }
  std::vector<GrowthTo> growths = GrowthsInPlace();
  growths.push_back(GrowthsThatKeepState().back());
  for (const char* optimizer : {"lamb", "muon"}) {
    for (const auto& [growth, now] : growths) {
      SCOPED_TRACE(std::string(optimizer) + ", " + growth.method);
      const TensorsByName grown = Grown(before, now, growth, tensors, RandomTensors(now, 54));
      const Moments kept{
          Grown(before, now, growth, moments.first, {}, GrownNumbers::kGradients),
          Grown(before, now, growth, moments.second, {}, GrownNumbers::kSquaredGradients)};
      const TensorsByName after = UpdatedWithoutGradients(now, grown, optimizer, kept);
      int64_t changed = 0, stayed = 0;
      for (const auto& [name, values] : grown) {
        const std::vector<double>&end = after.at(name), &moment = kept.first.at(name);
        for (size_t i = 0; i < values.size(); ++i) {
          const auto start = static_cast<float>(values[i]);
          changed += end[i] != start ? 1 : 0;
          if (moment[i] != 0) continue;
          ASSERT_EQ(end[i], start) << name << " " << i;
          ++stayed;
        }
      }
      EXPECT_GT(changed, 0);
      EXPECT_GT(stayed, 0);
    }
  }
}

}  // namespace
}  // namespace weft::engine
