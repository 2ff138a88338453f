// Which layers have their products in FP8, and which of them share scales.
#include "worker/engine/techniques/fp8/fp8_products.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/models/model.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

Fp8Spec WithBf16Blocks(int64_t first, int64_t last) {
  Fp8Spec spec;
  spec.bf16_first_blocks = first;
  spec.bf16_last_blocks = last;
  return spec;
}

/// Products of layers, and what their factory keeps of them.
struct Made {
  Allocator allocator;
  Context context;
  ParameterSet parameters;
  Fp8ProductsFactory factory;

  explicit Made(const Fp8Spec& spec) : factory(spec, true) { context.allocator = &allocator; }

  bool InFp8(const std::string& name, const BlockPlace& block, const std::string& group = {}) {
    const int64_t weight = parameters.RegisterStack({{name, 16}}, {16});
    const std::unique_ptr<WeightProducts> products = factory.Make({.parameters = &parameters,
                                                                   .weight = weight,
                                                                   .group = group,
                                                                   .block = block,
                                                                   .compute = DType::kBF16});
    return dynamic_cast<const Fp8Products*>(products.get()) != nullptr;
  }
  /// How many layers have scales of their own.
  int64_t Scales() {
    EXPECT_TRUE(factory.Allocate(context).ok());
    return factory.scaling().StateTensors().front().view.shape[0] / 2;
  }
};

TEST(Fp8ProductsFactory, LeavesTheBlocksAtTheEndsToBf16) {
  Made made(WithBf16Blocks(1, 2));
  std::vector<bool> in_fp8;
  for (int64_t block = 0; block < 5; ++block) {
    in_fp8.push_back(made.InFp8("w" + std::to_string(block), {block, 5}));
  }
  EXPECT_EQ(in_fp8, (std::vector<bool>{false, true, true, false, false}));
  EXPECT_EQ(made.Scales(), 2);
}

TEST(Fp8ProductsFactory, LayersOfAGroupShareTheScalesOfWhatTheyReadAndMake) {
  Made made({});
  for (const char* expert : {"0", "1", "2"}) {
    EXPECT_TRUE(made.InFp8(std::string(expert) + ".up", {}, "up"));
    EXPECT_TRUE(made.InFp8(std::string(expert) + ".down", {}, "down"));
  }
  EXPECT_TRUE(made.InFp8("alone", {}));
  EXPECT_TRUE(made.InFp8("alone too", {}));
  EXPECT_EQ(made.Scales(), 4);
}

TEST(Fp8ProductsFactory, AStageHasTheScalesOfItsOwnBlocks) {
  Made made(WithBf16Blocks(1, 1));
  for (const int64_t block : {4, 5, 6}) {
    for (int64_t layer = 0; layer < Fp8Scaling::kLayersOfBlock; ++layer) {
      (void)made.InFp8(std::to_string(block) + "." + std::to_string(layer), {block, 7});
    }
  }
  made.factory.SetStage({{4, 7}}, 7);
  EXPECT_EQ(made.Scales(), 2 * Fp8Scaling::kLayersOfBlock) << "block 6 is in bf16";
  const NamedTensor magnitudes = made.factory.scaling().StateTensors().front();
  ASSERT_TRUE(magnitudes.part);
  EXPECT_EQ(magnitudes.part->whole.dims[0], 2 * 5 * Fp8Scaling::kLayersOfBlock);
  EXPECT_EQ(magnitudes.part->shard.ranges.front().begin, 3 * Fp8Scaling::kLayersOfBlock);
}

// A branch may be skipped in the first step: history without it says nothing of its scale.
TEST(Fp8Scaling, ATensorWithoutHistoryIsScaledByItsOwnMagnitude) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  Fp8Scaling fp8({}, true);
  const int64_t computed = fp8.AddLayer({}), skipped = fp8.AddLayer({});
  ASSERT_TRUE(fp8.Allocate(context).ok());
  Tensor x = *Tensor::New(context, Component::kActivations, DType::kF32, {16, 16});
  std::fill_n(x.view().As<float>(), 256, 1e-6f);
  const auto scale_of = [&](int64_t layer) {
    const Fp8Tensor codes = *fp8.QuantizeGradient(context, layer, x, {.codes = true});
    return *codes.inverse_scale.view().As<float>();
  };
  const float own = scale_of(computed);
  ASSERT_TRUE(fp8.FinishStep(context, 0).ok());
  EXPECT_LT(own, 1e-9f) << "6e4 is the largest code of E5M2";
  EXPECT_EQ(scale_of(skipped), own);
  EXPECT_EQ(scale_of(computed), own);
}

// The planner chose the precision of such a job.
TEST(Fp8, FieldsOfItAreNoneOfAModelInAnotherPrecision) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  ModelOptions options;
  options.precision = &PrecisionOf("bf16");
  options.train.precision = "auto";
  options.train.fp8.history = 32;
  ModelSpec spec;
  spec.family = "gpt2";
  spec.vocab_size = 64;
  spec.context = 16;
  spec.width = 32;
  spec.layers = 2;
  spec.heads = 2;
  const auto model = NewModel(context, spec, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
}

// Also of one whose sizes nobody knew when the job was submitted.
TEST(Fp8, AModelNeedsSizesOfTheFormatAndABlockInIt) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](int64_t width, const Fp8Spec& spec) {
    ModelSpec model;
    model.vocab_size = 16;
    model.context = 8;
    model.width = width;
    model.heads = 1;
    model.layers = 3;
    ModelOptions options;
    options.precision = &PrecisionOf("fp8");
    options.train.fp8 = spec;
    return std::string(NewModel(context, model, options).status().message());
  };
  EXPECT_EQ(refusal(64, WithBf16Blocks(1, 1)), "");
  EXPECT_THAT(refusal(64, WithBf16Blocks(2, 1)), HasSubstr("leave none of the 3 blocks"));
  EXPECT_THAT(refusal(72, {}), HasSubstr("multiples of 16, and model.width is 72; hint: "));
}

}  // namespace
}  // namespace weft::engine
