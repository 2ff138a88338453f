// Grafts and gates of blocks, without a technique that has them.
#include "worker/engine/nn/graft.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/models/gpt2.h"
#include "worker/engine/nn/affine.h"
#include "worker/engine/nn/initialization.h"
#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using Values = std::vector<float>;

constexpr int64_t kSequences = 4;

/// A gate of layer 1's attention or layer 2's MLP.
class TestGate : public BranchGate {
 public:
  TestGate(SubLayer sub_layer, BranchChoice choice)
      : layer_(sub_layer == SubLayer::kAttention ? 1 : 2), choice_(std::move(choice)) {}
  BranchChoice Choose(const Context&, const GraftUse& use) const override {
    return use.layer == layer_ ? choice_ : BranchChoice();
  }

 private:
  int64_t layer_;
  BranchChoice choice_;
};

Grafter Gated(const BranchChoice& choice) {
  return [choice](const GraftSite& site, Grafts& grafts) {
    grafts.SetGate(std::make_unique<TestGate>(*site.sub_layer, choice));
  };
}

ModelSpec Spec(const std::string& norm_position, const std::string& initialization = "gpt2") {
  ModelSpec spec = TinyModel();
  spec.layers = 4;
  spec.norm_position = norm_position;
  spec.initialization.method = initialization;
  return spec;
}

/// Blocks of a GPT-2, and what they make of a batch.
struct Blocks {
  ModelSpec spec;
  Allocator allocator;
  Context context;
  ParameterSet parameters;
  BlockStack stack;
  Values output, input_gradient, gradients;
  std::vector<std::string> reported;  ///< Sub-layers, as their gradients become complete.
  double flops = 0;
  bool below_is_trained = true;  ///< What comes before the blocks.
  bool result_needs_gradient = false;

  Blocks(const ModelSpec& of, const Grafter& grafter, const std::vector<std::string>& policies = {})
      : spec(of),
        stack(&parameters,
              {.layers = spec.layers,
               .distinct = spec.layers,
               .block = Gpt2(spec).block,
               .remat = [policies](int64_t layers) { return RematOfPolicies(policies, layers, 1); },
               .grafter = grafter},
              DType::kF32) {
    context.allocator = &allocator;
    SetStarts(spec, parameters);
    WEFT_CHECK(parameters.Allocate(context, true).ok(), "allocate");
    WEFT_CHECK(parameters.Initialize(1).ok(), "initialize");
    WEFT_CHECK(stack.Pack(context, Repack::kAll).ok(), "pack");
  }

  /// "h.2 mlp".
  std::string SubLayerOf(int64_t index) const {
    const std::string& name = parameters[index].name;
    const std::string block = name.substr(name.find("h."), 3);
    const bool attention =
        name.find("ln_1") != std::string::npos || name.find(".attn.") != std::string::npos;
    return block + (attention ? " attention" : " mlp");
  }

  /// The gradient of the result is its rows' numbers for the sequences in `differentiated`.
  void Run(const std::vector<bool>& differentiated = std::vector<bool>(kSequences, true)) {
    const Batch drawn = *RandomTokens(spec.vocab_size, 16).Get(0, 0, kSequences);
    auto batch = TokenBatch::New(context, drawn, 0);
    const Shape shape{batch->count, spec.width};
    auto x = Tensor::New(context, Component::kWorkspace, DType::kF32, shape);
    auto dy = Tensor::New(context, Component::kWorkspace, DType::kF32, shape);
    PhiloxStream random(PhiloxKey{5, 0, 0});
    for (int64_t i = 0; i < shape.Elements(); ++i) {
      x->As<float>()[i] = static_cast<float>(random.Normal());
      const auto slope = static_cast<float>(random.Normal());
      const int64_t sequence = i / spec.width / batch->length;
      dy->As<float>()[i] = differentiated[static_cast<size_t>(sequence)] ? slope : 0;
    }
    Profiler profiler;
    context.profiler = &profiler;
    ParameterGradients sums(parameters.DifferentiatedGradients());
    sums.StartStep();
    sums.StartPass([&](int64_t index) {
      if (reported.empty() || reported.back() != SubLayerOf(index)) {
        reported.push_back(SubLayerOf(index));
      }
      return OkStatus();
    });
    Tape tape(&sums);
    const Value in = tape.NewValue(*x, below_is_trained);
    auto y = stack.Forward(context, tape, in, *batch);
    WEFT_CHECK(y.ok(), y.status().message());
    auto sum = Sum(context, tape, *y);
    output = ValuesOf(sum->tensor.view());
    result_needs_gradient = sum->needs_gradient();
    WEFT_CHECK(tape.AddGradient(context, sum->node, *dy).ok(), "gradient");
    const Status status = tape.RunBackward(context);
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(sums.FinishPass(context).ok(), "finish");
    if (below_is_trained) input_gradient = ValuesOf(tape.TakeGradient(in.node).view());
    gradients = ValuesOf(parameters.gradients());
    context.profiler = nullptr;
    for (const auto& [name, entry] : profiler.entries()) flops += entry.flops;
  }
};

void ExpectNear(const Values& values, const Values& truth) {
  ASSERT_EQ(values.size(), truth.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], truth[i], 1e-4 + 1e-5 * std::fabs(truth[i])) << i;
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(BranchGateTest, ASkippedBranchIsOneTimesZeroWithoutItsWork) {
  for (const char* norm_position : {"pre", "post", "none"}) {
    for (const char* policy : {"keep", "attention", "recompute"}) {
      SCOPED_TRACE(std::string(norm_position) + ", " + policy);
      const std::vector<std::string> policies(4, policy);
      Blocks all(Spec(norm_position), nullptr, policies);
      Blocks zero(Spec(norm_position), Gated({.scale = 0}), policies);
      Blocks skipped(Spec(norm_position), Gated({.computed = false}), policies);
      for (Blocks* each : {&all, &zero, &skipped}) each->Run();
      EXPECT_NE(zero.output, all.output);
      EXPECT_EQ(skipped.output, zero.output);
      EXPECT_EQ(skipped.input_gradient, zero.input_gradient);
      EXPECT_EQ(skipped.gradients, zero.gradients);
      EXPECT_EQ(skipped.reported, all.reported) << "reductions start as early";
      // One attention and one MLP of four each.
      EXPECT_NEAR(skipped.flops / all.flops, 0.75, 1e-3);
    }
  }
}

TEST(BranchGateTest, PickedSequencesAreComputedAlone) {
  for (const char* norm_position : {"pre", "post", "none"}) {
    for (const char* policy : {"keep", "recompute"}) {
      SCOPED_TRACE(std::string(norm_position) + ", " + policy);
      const std::vector<std::string> policies(4, policy);
      const std::vector<bool> picks = {true, false, true, false};
      Blocks with(Spec(norm_position), Gated({.scale = 1.25}), policies);
      Blocks without(Spec(norm_position), Gated({.computed = false}), policies);
      Blocks some(Spec(norm_position), Gated({.scale = 1.25, .sequences = {0, 2}}), policies);
      with.Run(picks);
      without.Run({false, true, false, true});
      some.Run();
      const auto merged = [&](const Values& picked, const Values& others) {
        Values values = others;
        const size_t of_sequence = values.size() / kSequences;
        for (size_t i = 0; i < values.size(); ++i) {
          if (picks[i / of_sequence]) values[i] = picked[i];
        }
        return values;
      };
      ExpectNear(some.output, merged(with.output, without.output));
      ExpectNear(some.input_gradient, merged(with.input_gradient, without.input_gradient));
      Values sums = with.gradients;
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += without.gradients[i];
      ExpectNear(some.gradients, sums);
      EXPECT_EQ(some.reported, with.reported);
      EXPECT_NEAR(some.flops / with.flops, 0.875, 1e-3);
    }
  }
}

// What comes and goes block by block, as parameters do, must not depend on what is skipped.
TEST(BranchGateTest, AResultNeedsAGradientWhereItWouldWithTheBranch) {
  class NoBranch : public BranchGate {
   public:
    BranchChoice Choose(const Context&, const GraftUse&) const override {
      return {.computed = false};
    }
  };
  const Grafter none = [](const GraftSite&, Grafts& grafts) {
    grafts.SetGate(std::make_unique<NoBranch>());
  };
  for (const char* policy : {"keep", "recompute"}) {
    SCOPED_TRACE(policy);
    Blocks blocks(Spec("pre"), none, std::vector<std::string>(4, policy));
    blocks.below_is_trained = false;
    blocks.Run();
    EXPECT_TRUE(blocks.result_needs_gradient);
    EXPECT_EQ(blocks.reported.size(), 8u);
    for (const float gradient : blocks.gradients) EXPECT_EQ(gradient, 0);
  }
}

TEST(GraftTest, AScaleOfABranchCanBePutThereByATechnique) {
  const Grafter scales = [](const GraftSite& site, Grafts& grafts) {
    const int64_t scale =
        site.parameters->Register(site.name + ".scale", {1}, ParameterRole::kMlpScale);
    grafts.Put(GraftPlace::kResidualBranch, std::make_unique<Affine>(site.parameters, scale, -1));
  };
  ModelSpec plain = Spec("pre");
  ModelSpec skipinit = Spec("pre", "skipinit");
  for (const char* policy : {"keep", "attention", "recompute"}) {
    SCOPED_TRACE(policy);
    const std::vector<std::string> policies(4, policy);
    Blocks own(skipinit, nullptr, policies);
    Blocks grafted(plain, scales, policies);
    ASSERT_EQ(own.parameters.ElementCount(), grafted.parameters.ElementCount());
    for (Blocks* each : {&own, &grafted}) {
      for (int64_t i = 0; i < each->parameters.size(); ++i) {
        EXPECT_EQ(each->parameters[i].name, own.parameters[i].name);
        EXPECT_EQ(each->parameters[i].unit, own.parameters[i].unit);
        PhiloxStream random(PhiloxKey{7, 0, static_cast<uint32_t>(i)});
        const TensorView value = each->parameters.value(i);
        for (int64_t e = 0; e < value.shape.Elements(); ++e) {
          value.As<float>()[e] = static_cast<float>(0.2 * random.Normal());
        }
      }
      WEFT_CHECK(each->stack.Pack(each->context, Repack::kAll).ok(), "pack");
      each->Run();
    }
    EXPECT_EQ(grafted.output, own.output);
    EXPECT_EQ(grafted.gradients, own.gradients);
  }
}

/// Notes whether the graft of the embeddings, a dropout, has run when unit 0 is released.
class NotesReleases : public ParameterPrefetcher {
 public:
  explicit NotesReleases(const Profiler* profiler) : profiler_(profiler) {}
  Status Fetch(Context&, int64_t, Pass) override { return OkStatus(); }
  Status Release(int64_t unit) override {
    if (unit != 0) return OkStatus();
    grafted_.push_back(profiler_->entries().contains("dropout forward"));
    return OkStatus();
  }
  bool drops() const override { return false; }
  /// In the order of the releases.
  const std::vector<bool>& grafted() const { return grafted_; }

 private:
  const Profiler* profiler_;
  std::vector<bool> grafted_;
};

// Grafts may have parameters there, which are gone afterwards.
TEST(GraftTest, TheEmbeddingIsReleasedAfterItsGrafts) {
  for (const char* family : {"gpt2", "bert", "vit"}) {
    SCOPED_TRACE(family);
    ModelSpec spec = TinyModel();
    spec.family = family;
    spec.dropout = 0.1;
    std::unique_ptr<BatchSource> batches = std::make_unique<RandomMasked>(40, 16, 0.2);
    if (spec.family == "gpt2") batches = std::make_unique<RandomTokens>(40, 16);
    if (spec.family == "vit") {
      spec.image_size = 8;
      spec.patch_size = 4;
      spec.classes = 3;
      batches = std::make_unique<NoiseImages>(spec);
    }
    TinyRun run(spec, {&kFp32Precision, true, {}});
    Profiler profiler;
    NotesReleases prefetcher(&profiler);
    run.model->parameters().SetPrefetcher(&prefetcher);
    run.context.profiler = &profiler;
    run.Differentiate(*batches->Get(0, 0, kSequences));
    run.model->parameters().SetPrefetcher(nullptr);
    EXPECT_EQ(prefetcher.grafted(), std::vector<bool>({true, true})) << "forward, backward";
  }
}

}  // namespace
}  // namespace weft::engine
