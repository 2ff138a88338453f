#include "worker/engine/models/decoder.h"

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

const ModelOptions kFloat32{&kFp32Precision, true, {}};
constexpr int64_t kLength = 16;

Batch RandomBatch(int64_t sequences) {
  auto batch = RandomTokens(TinyModel().vocab_size, kLength).Get(0, 0, sequences);
  return *std::move(batch);
}

struct Variant {
  const char* name;
  ModelSpec spec;
};

ModelSpec With(const std::function<void(ModelSpec&)>& change) {
  ModelSpec spec = TinyModel();
  change(spec);
  return spec;
}

void Llama(ModelSpec& spec) {
  spec.family = "llama";
  spec.mlp_width = 80;
}

// Every way to put a decoder together.
std::vector<Variant> Variants() {
  return {
      {"gpt2", TinyModel()},
      {"post-norm", With([](ModelSpec& s) { s.norm_position = "post"; })},
      {"no norms", With([](ModelSpec& s) { s.norm_position = "none"; })},
      {"rezero", With([](ModelSpec& s) { s.initialization.method = "rezero"; })},
      {"skipinit, post-norm", With([](ModelSpec& s) {
         s.initialization.method = "skipinit";
         s.norm_position = "post";
       })},
      {"layer scale", With([](ModelSpec& s) { s.initialization.method = "layer_scale"; })},
      {"fixup, untied", With([](ModelSpec& s) {
         s.initialization.method = "fixup";
         s.untied_classifier = true;
       })},
      {"mup", With([](ModelSpec& s) {
         s.initialization.method = "mup";
         s.initialization.base_width = 8;
       })},
      {"untied", With([](ModelSpec& s) { s.untied_classifier = true; })},
      {"factorised", With([](ModelSpec& s) { s.embedding_width = 8; })},
      {"factorised, untied", With([](ModelSpec& s) {
         s.embedding_width = 8;
         s.untied_classifier = true;
       })},
      {"shared blocks", With([](ModelSpec& s) {
         s.layers = 4;
         s.distinct_blocks = 2;
       })},
      {"no blocks", With([](ModelSpec& s) { s.layers = 0; })},
      {"llama", With(Llama)},
      {"llama, no blocks", With([](ModelSpec& s) {
         Llama(s);
         s.layers = 0;
       })},
      {"llama, grouped queries, untied", With([](ModelSpec& s) {
         Llama(s);
         s.heads = 4;
         s.kv_heads = 2;
         s.untied_classifier = true;
       })},
      {"llama, wide heads", With([](ModelSpec& s) {
         Llama(s);
         s.heads = 4;
         s.kv_heads = 2;
         s.head_width = 16;
       })},
      {"llama, few heads", With([](ModelSpec& s) {
         Llama(s);
         s.heads = s.kv_heads = 1;
         s.head_width = 16;
       })},
      {"mixtral", With([](ModelSpec& s) {
         Llama(s);
         s.experts = 4;
         s.router_aux_loss = 0;  // no part of the loss that is measured
       })},
      {"mixtral, shared blocks, experts with room for all", With([](ModelSpec& s) {
         Llama(s);
         s.distinct_blocks = 1;
         s.experts = 5;
         s.experts_per_token = 2;  // of a single one the weight is 1 and the router learns nothing
         s.expert_capacity = 8;
         s.router_aux_loss = 0;
       })},
      {"qwen2 with a window and stretched positions", With([](ModelSpec& s) {
         Llama(s);
         s.heads = 4;
         s.kv_heads = 1;
         s.qkv_bias = true;
         s.sliding_window = 5;
         s.rope_scaling.kind = "llama3";
         s.rope_scaling.factor = 4;
         s.rope_scaling.original_context = 64;
       })},
  };
}

TEST(DecoderTest, ParametersAreThoseOfTheModelsList) {
  for (const Variant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    TinyRun run(variant.spec, kFloat32);
    const ParameterSet& parameters = run.model->parameters();
    const std::vector<ParameterInfo> expected = ParametersOf(variant.spec);
    EXPECT_EQ(parameters.size(), static_cast<int64_t>(expected.size()));
    EXPECT_EQ(parameters.ElementCount(), ModelShape(variant.spec).counts.Total());
    for (const ParameterInfo& parameter : expected) {
      auto index = parameters.Find(parameter.name);
      ASSERT_TRUE(index.ok()) << parameter.name;
      const Shape& shape = parameters[*index].shape;
      EXPECT_EQ(std::vector<int64_t>(shape.dims.begin(), shape.dims.begin() + shape.rank),
                parameter.shape)
          << parameter.name;
      const ParameterAttributes& attributes = parameters[*index];
      EXPECT_TRUE(attributes == parameter) << parameter.name;
      EXPECT_EQ(parameters[*index].unit, parameter.unit) << parameter.name;
    }
  }
}

// Away from the start, where biases are zero and the attention is nearly uniform.
void Perturb(TinyRun& run, double deviation) {
  PhiloxStream random(PhiloxKey{3, 0, 0});
  ParameterSet& parameters = run.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const TensorView view = parameters.value(p);
    for (int64_t i = 0; i < view.shape.Elements(); ++i) {
      view.As<float>()[i] += static_cast<float>(deviation * random.Normal());
    }
  }
  ASSERT_TRUE(run.model->Pack(run.context).ok());
}

// Slope of the loss along a direction of parameter `p`, by finite differences and by gradient.
void CheckSlope(TinyRun& run, const Batch& batch, int64_t p, PhiloxStream& random) {
  ParameterSet& parameters = run.model->parameters();
  const TensorView view = parameters.value(p);
  const float* gradient = parameters.gradient(p).As<float>();
  const int64_t count = view.shape.Elements();
  const std::vector<float> start(view.As<float>(), view.As<float>() + count);
  double norm = 0;
  for (int64_t i = 0; i < count; ++i) norm += std::pow(gradient[i], 2);
  norm = std::sqrt(norm);
  std::vector<double> direction(static_cast<size_t>(count));
  double along = 0;
  for (int64_t i = 0; i < count; ++i) {
    // Half along the gradient, so that there is a slope to see, half anywhere.
    direction[i] = gradient[i] / norm + random.Normal() / std::sqrt(count);
    along += direction[i] * gradient[i];
  }
  constexpr double kStep = 2e-3;
  double loss[2];
  for (int side = 0; side < 2; ++side) {
    for (int64_t i = 0; i < count; ++i) {
      view.As<float>()[i] =
          start[i] + static_cast<float>((side == 0 ? -kStep : kStep) * direction[i]);
    }
    ASSERT_TRUE(run.model->Pack(run.context).ok());
    loss[side] = run.Loss(batch);
  }
  std::copy(start.begin(), start.end(), view.As<float>());
  const double slope = (loss[1] - loss[0]) / (2 * kStep);
  EXPECT_NEAR(slope, along, 0.01 * std::fabs(along) + 0.02) << parameters[p].name;
}

TEST(DecoderTest, GradientsAgreeWithFiniteDifferences) {
  for (const Variant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    TinyRun run(variant.spec, kFloat32);
    Perturb(run, 0.15);
    Batch batch = RandomBatch(2);
    batch.targets[3] = kernels::kIgnoreTarget;
    run.Differentiate(batch);
    PhiloxStream random(PhiloxKey{4, 0, 0});
    for (int64_t p = 0; p < run.model->parameters().size(); ++p) {
      CheckSlope(run, batch, p, random);
    }
  }
}

TEST(DecoderTest, RecomputedGradientsAreBitForBitTheKeptOnes) {
  const Batch batch = RandomBatch(4);
  for (Variant& variant : Variants()) {
    if (variant.spec.layers == 0) continue;
    variant.spec.layers *= 2;
    variant.spec.dropout = 0.2;
    variant.spec.attention_dropout = 0.3;
    for (const PrecisionRecipe* precision : AllPrecisions()) {
      SCOPED_TRACE(std::string(variant.name) + " in " + std::string(precision->name));
      TinyRun kept(variant.spec, {precision, true, {}});
      const double loss = kept.Differentiate(batch);
      const std::vector<float> gradients = kept.Gradients();
      EXPECT_EQ(kept.Differentiate(batch), loss);
      EXPECT_EQ(kept.Gradients(), gradients) << "a second time";
      const auto layers = static_cast<size_t>(variant.spec.layers);
      for (const std::vector<std::string>& policy :
           {std::vector<std::string>(layers, "recompute"),
            std::vector<std::string>{"keep", "recompute"}}) {
        TinyRun recomputed(variant.spec, {precision, true, policy});
        EXPECT_EQ(recomputed.Differentiate(batch), loss);
        EXPECT_EQ(recomputed.Gradients(), gradients);
        EXPECT_LT(recomputed.allocator.Peaks().activations_bytes,
                  kept.allocator.Peaks().activations_bytes);
      }
    }
  }
}

TEST(DecoderTest, EveryScheduleGivesTheSameBitsAndDoesWhatItSays) {
  const Batch batch = RandomBatch(4);
  for (const char* family : {"gpt2", "llama"}) {
    ModelSpec spec = With([&](ModelSpec& s) {
      s.family = family;
      s.layers = 5;
      s.dropout = s.family == "gpt2" ? 0.2 : 0;
      s.attention_dropout = 0.3;
    });
    for (const PrecisionRecipe* precision : {&kFp32Precision, &kBf16Precision}) {
      SCOPED_TRACE(std::string(family) + " in " + std::string(precision->name));
      TinyRun kept(spec, {precision, true, {}});
      const double loss = kept.Differentiate(batch);
      const std::vector<float> gradients = kept.Gradients();
      const struct {
        std::vector<std::string> policies;
        int64_t segment;
        std::vector<std::string> schedule;
      } cases[] = {
          {std::vector<std::string>(5, "attention"), 1, {}},
          {std::vector<std::string>(5, "recompute"), 2, {}},
          {{"recompute", "recompute", "recompute", "attention"}, 3, {}},
          {{},
           1,
           {"F_ck 0", "F_none 1", "F_none 2", "F_attention 3", "F_all 4", "B 4", "B 3", "F_ck 0",
            "F_none 1", "F_all 2", "B 2", "F_ck 0", "F_attention 1", "B 1", "F_all 0", "B 0"}},
      };
      for (const auto& [policies, segment, schedule] : cases) {
        std::vector<std::string> done;
        TinyRun run(spec, {precision, true, policies, segment, schedule, 0, &done});
        EXPECT_EQ(run.Differentiate(batch), loss);
        EXPECT_EQ(run.Gradients(), gradients);
        EXPECT_LT(run.allocator.Peaks().activations_bytes,
                  kept.allocator.Peaks().activations_bytes);
        auto plan = RematOf({precision, true, policies, segment, schedule}, spec.layers);
        EXPECT_EQ(done, RematOperations(*plan));
      }
    }
  }
}

TEST(DecoderTest, AScheduleThatIsNoneIsRefused) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto model = NewModel(context, TinyModel(), {&kFp32Precision, true, {}, 1, {"F_all 0"}});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kInvalid);
}

// Copies of one block's values into all blocks: "h.0." to "h.1.", ...
void RepeatFirstBlock(ParameterSet& parameters, int64_t layers) {
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const std::string& name = parameters[p].name;
    const size_t at = name.find("h.0.");
    if (at == std::string::npos) continue;
    const TensorView from = parameters.value(p);
    for (int64_t layer = 1; layer < layers; ++layer) {
      std::string other = name;
      other.replace(at, 4, "h." + std::to_string(layer) + ".");
      const TensorView to = parameters.value(*parameters.Find(other));
      std::copy_n(from.As<float>(), from.shape.Elements(), to.As<float>());
    }
  }
}

TEST(DecoderTest, ASharedBlockIsLikeEqualBlocksWhoseGradientsAreAdded) {
  ModelSpec separate = With([](ModelSpec& s) { s.layers = 3; });
  ModelSpec shared = separate;
  shared.distinct_blocks = 1;
  TinyRun many(separate, kFloat32);
  RepeatFirstBlock(many.model->parameters(), 3);
  ASSERT_TRUE(many.model->Pack(many.context).ok());
  TinyRun one(shared, kFloat32);
  const Batch batch = RandomBatch(2);
  EXPECT_EQ(one.Differentiate(batch), many.Differentiate(batch));
  const ParameterSet& parameters = one.model->parameters();
  EXPECT_LT(parameters.size(), many.model->parameters().size());
  for (int64_t p = 0; p < parameters.size(); ++p) {
    std::vector<double> sum(static_cast<size_t>(parameters[p].shape.Elements()), 0.0);
    const size_t at = parameters[p].name.find("h.0.");
    for (int64_t layer = 0; layer < (at == std::string::npos ? 1 : 3); ++layer) {
      std::string name = parameters[p].name;
      if (at != std::string::npos) name.replace(at, 4, "h." + std::to_string(layer) + ".");
      const ParameterSet& others = many.model->parameters();
      const TensorView part = others.gradient(*others.Find(name));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part.As<float>()[i];
    }
    double scale = 1e-6;
    for (double value : sum) scale = std::max(scale, std::fabs(value));
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(parameters.gradient(p).As<float>()[i], sum[i], 1e-5 * scale)
          << parameters[p].name;
    }
  }
}

TEST(DecoderTest, LayersOfASharedBlockDropDifferently) {
  ModelSpec spec = With([](ModelSpec& s) {
    s.distinct_blocks = 1;
    s.dropout = 0.5;
    s.norm_position = "none";
  });
  TinyRun run(spec, kFloat32);
  // With all else zero the hidden state is the dropped bias of both layers, m1 + m2 with m in 0, 2.
  // Logits are zero, so that each row of the classifier but the target's has gradient hidden / V.
  ParameterSet& parameters = run.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const TensorView view = parameters.value(p);
    const bool bias = parameters[p].name == "transformer.h.0.mlp.c_proj.bias";
    std::fill_n(view.As<float>(), view.shape.Elements(), bias ? 1.0f : 0.0f);
  }
  ASSERT_TRUE(run.model->Pack(run.context).ok());
  run.Differentiate(BatchOf({1, 2}, 1));
  const int64_t wte = *parameters.Find("transformer.wte.weight");
  const float* row = parameters.gradient(wte).As<float>() + 3 * spec.width;
  std::map<int, int> counts;
  for (int64_t i = 0; i < spec.width; ++i) {
    ++counts[static_cast<int>(std::lround(row[i] * static_cast<float>(spec.vocab_size)))];
  }
  EXPECT_EQ(counts[0] + counts[2] + counts[4], spec.width);
  EXPECT_GT(counts[2], 0) << "dropped by one layer and not by the other";
}

TEST(DecoderTest, FrozenParametersHaveNoGradientAndChangeNoOther) {
  const Batch batch = RandomBatch(3);
  ModelSpec spec = TinyModel();
  spec.dropout = 0.1;
  TinyRun all(spec, kFloat32);
  const double loss = all.Differentiate(batch);
  const ParameterSet& reference = all.model->parameters();
  for (const std::vector<std::string>& freeze : {std::vector<std::string>{"transformer.w*"},
                                                 {"transformer.w*", "transformer.h.0.*"},
                                                 {"*.weight"},
                                                 {"*.ln_*", "*.c_attn.weight"},
                                                 {"*.c_attn.bias", "*.mlp.*.weight"},
                                                 {"transformer.h.*", "transformer.ln_f.*"},
                                                 {"transformer.wte*", "transformer.h.*.mlp.*"}}) {
    for (bool recompute : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(freeze) + (recompute ? ", recomputed" : ""));
      spec.freeze = freeze;
      TinyRun run(spec, {&kFp32Precision, true, {2, recompute ? "recompute" : "keep"}});
      EXPECT_EQ(run.Differentiate(batch), loss);
      const ParameterSet& parameters = run.model->parameters();
      int64_t trained = 0;
      for (int64_t p = 0; p < parameters.size(); ++p) {
        if (!parameters[p].trainable()) {
          EXPECT_FALSE(parameters.gradient(p));
          continue;
        }
        const int64_t count = parameters[p].shape.Elements();
        trained += count;
        const float* got = parameters.gradient(p).As<float>();
        const float* expected = reference.gradient(p).As<float>();
        EXPECT_EQ(std::vector<float>(got, got + count),
                  std::vector<float>(expected, expected + count))
            << parameters[p].name;
      }
      // Each on a boundary of 64 bytes, the vocabulary in whole tiles, the buffer in blocks.
      const int64_t bytes = run.allocator.Peaks().gradients_bytes;
      EXPECT_GE(bytes, 4 * trained);
      EXPECT_LE(bytes, 4 * (trained + 15 * parameters.size() + 63 * spec.width) + 256);
    }
  }
}

TEST(DecoderTest, PartsOfOneProductFreezeOnTheirOwn) {
  const Batch batch = RandomBatch(3);
  ModelSpec spec = With(Llama);
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.qkv_bias = true;
  TinyRun all(spec, kFloat32);
  const double loss = all.Differentiate(batch);
  for (const char* freeze : {"*.q_proj.weight", "*.k_proj.*", "*.v_proj.bias", "*.gate_proj.*"}) {
    SCOPED_TRACE(freeze);
    spec.freeze = {freeze};
    TinyRun run(spec, kFloat32);
    EXPECT_EQ(run.Differentiate(batch), loss);
    const ParameterSet& parameters = run.model->parameters();
    for (int64_t p = 0; p < parameters.size(); ++p) {
      if (!parameters[p].trainable()) continue;
      const float* got = parameters.gradient(p).As<float>();
      const float* expected = all.model->parameters().gradient(p).As<float>();
      // One product may sum in another order than two.
      for (int64_t i = 0; i < parameters[p].shape.Elements(); ++i) {
        ASSERT_NEAR(got[i], expected[i], 1e-5 * (1 + std::fabs(expected[i]))) << parameters[p].name;
      }
    }
  }
}

TEST(DecoderTest, TheBackwardPassEndsWhereNothingBelowIsTrained) {
  ModelSpec spec = TinyModel();
  const auto operations = [&](const std::vector<std::string>& freeze) {
    spec.freeze = freeze;
    TinyRun run(spec, kFloat32);
    Profiler profiler;
    run.context.profiler = &profiler;
    run.Differentiate(RandomBatch(2));
    std::map<std::string, int64_t> counts;
    for (const auto& [name, entry] : profiler.entries()) counts[std::string(name)] = entry.calls;
    return counts;
  };
  auto all = operations({});
  EXPECT_EQ(all["attention backward"], 2);
  EXPECT_EQ(all["embedding backward"], 1);
  auto upper = operations({"transformer.w*", "transformer.h.0.*"});
  EXPECT_EQ(upper["attention backward"], 1);
  EXPECT_EQ(upper["embedding backward"], 0);
  EXPECT_EQ(upper["norm backward"], 3) << "two of the upper block, the last";
  auto last = operations({"transformer.w*", "transformer.h.*"});
  EXPECT_EQ(last["attention backward"], 0);
  EXPECT_EQ(last["norm backward"], 1);
}

TEST(DecoderTest, FreezePatternsThatFreezeNothingOrAllAreRefused) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto message = [&](const std::vector<std::string>& freeze) {
    ModelSpec spec = TinyModel();
    spec.freeze = freeze;
    auto model = NewModel(context, spec, kFloat32);
    EXPECT_EQ(model.status().code(), StatusCode::kInvalid);
    return model.status().message();
  };
  EXPECT_THAT(message({"transformer.wtf.weight"}), HasSubstr("'transformer.wte.weight'"));
  EXPECT_THAT(message({"*.ln_1.*", "blocks.*"}), HasSubstr("'blocks.*' matches no parameter"));
  EXPECT_THAT(message({"*"}), HasSubstr("nothing to train"));
}

TEST(DecoderTest, AStepMovesOnlyWhatIsTrained) {
  JobSpec job = TinyJob();
  job.model.freeze = {"transformer.w*", "transformer.h.0.*"};
  RandomTokens tokens(job.model.vocab_size, kLength);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  const auto before = ValuesOf(run.model->parameters());
  run.Step();
  run.Step();
  const auto after = ValuesOf(run.model->parameters());
  const ParameterSet& parameters = run.model->parameters();
  std::string frozen;
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const bool same = before[static_cast<size_t>(p)] == after[static_cast<size_t>(p)];
    EXPECT_EQ(same, !parameters[p].trainable()) << parameters[p].name;
    if (same) frozen = parameters[p].name;
  }
  int values = 0;
  int moments = 0;
  for (const NamedTensor& tensor : run.trainer->StateTensors()) {
    values += tensor.name == frozen;
    moments += tensor.name != frozen && tensor.name.find(frozen) != std::string::npos;
  }
  EXPECT_EQ(values, 1) << "checkpoints hold frozen values";
  EXPECT_EQ(moments, 0) << "but nothing else of them";
  EXPECT_NEAR(run.allocator.Peaks().optimizer_bytes, 8 * parameters.GradientCount(), 2 * 256);
}

TEST(DecoderTest, SizesThatDoNotFitAreRefused) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto message = [&](const std::function<void(ModelSpec&)>& change) {
    auto model = NewModel(context, With(change), kFloat32);
    EXPECT_EQ(model.status().code(), StatusCode::kInvalid);
    return model.status().message();
  };
  EXPECT_THAT(message([](ModelSpec& s) { s.distinct_blocks = 3; }), HasSubstr("distinct_blocks 3"));
  EXPECT_THAT(message([](ModelSpec& s) { s.distinct_blocks = 4; }), HasSubstr("distinct_blocks 4"));
}

TEST(DecoderTest, OptionsThatDoNotGoTogetherAreRefused) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto message = [&](const ModelSpec& spec, const ModelOptions& options) {
    auto model = NewModel(context, spec, options);
    EXPECT_EQ(model.status().code(), StatusCode::kInvalid);
    return model.status().message();
  };
  ModelOptions sharded;
  sharded.update_ranks = 2;
  sharded.place_gradients = sharded.shard_values = true;
  const ModelSpec factored =
      With([](ModelSpec& s) { s.over_parameterization.kind = "linear_expansion"; });
  EXPECT_THAT(message(factored, sharded), HasSubstr("resources.zero_stage 3"));
  sharded.precision = &PrecisionOf("fp8");
  EXPECT_THAT(message(TinyModel(), sharded), HasSubstr("train.precision fp8"));
  ModelOptions kept;
  kept.offload = kept.stream_parameters = true;
  kept.device_updated_units = {0};
  EXPECT_THAT(message(TinyModel(), kept), HasSubstr("resources.device_updated_units"));
}

}  // namespace
}  // namespace weft::engine
