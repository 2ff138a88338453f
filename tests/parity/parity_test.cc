// Compares the engine with PyTorch and transformers, whose results make_fixtures.py recorded in
// float64: logits, loss, every gradient, and the weights after 20 steps of AdamW.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/json.h"
#include "tests/parity/recorded.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

// A model with the weights of a recorded folder.
struct Recorded : TinyRun {
  Recorded(const std::string& family, const std::string& name,
           const PrecisionRecipe& precision = kFp32Precision, double attention_dropout = 0)
      : TinyRun(Spec(family, attention_dropout), {&precision, true, {}}) {
    TinyRun file(FileSpec(family), {&precision, false, {}});
    Status status = ImportWeights(Env::Posix(), Folder(family) + "/" + name, *file.model);
    WEFT_CHECK(status.ok(), status.message());
    const auto from = file.model->parameters().NamedValues();
    const auto to = model->parameters().NamedValues();
    WEFT_CHECK(from.size() == to.size(), "the same parameters");
    for (size_t i = 0; i < from.size(); ++i) {
      std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
    }
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
};

// How far from float64 the roundings of a network of this size may lead.
struct ParityTolerance {
  double logits = 0;
  double gradients = 0;
  double zero = 0;  ///< Norm of a gradient that is zero except for roundings.
};

ParityTolerance ToleranceOf(const PrecisionRecipe& precision) {
  if (precision.block_products != nullptr) return {1e-1, 2.5e-1, 5e-3};
  switch (precision.activations) {
    case DType::kBF16:
      return {2e-2, 5e-2, 1e-3};
    case DType::kF16:
      return {3e-3, 8e-3, 1e-4};
    default:
      return {1e-5, 1e-4, 1e-7};
  }
}

// FP8 products take sizes that are multiples of 16, and no experts.
bool Multiplies(const PrecisionRecipe& precision, const std::string& family) {
  const ModelSpec spec = Spec(family);
  return precision.block_products == nullptr || (MlpWidth(spec) % 16 == 0 && spec.experts == 0);
}

class ParityTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ParityTest, LogitsAndLossAreThoseOfPyTorch) {
  const Batch batch = RecordedBatch(GetParam());
  const std::vector<float> expected = ReadTensor<float>(GetParam(), "logits");
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    if (!Multiplies(*precision, GetParam())) continue;
    const double tolerance = ToleranceOf(*precision).logits;
    SCOPED_TRACE(precision->name);
    Recorded run(GetParam(), "start", *precision);
    const std::vector<float> logits = run.Logits(batch);
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_LT(RelativeError(logits.data(), expected.data(), expected.size()), tolerance);
    EXPECT_NEAR(run.Loss(batch) / static_cast<double>(batch.target_count),
                ReadTensor<float>(GetParam(), "loss")[0], tolerance);
  }
}

// The gradients of `run` are the parameters of `expected`.
void ExpectGradients(const TinyRun& run, const TinyRun& expected,
                     const PrecisionRecipe& precision) {
  for (int64_t p = 0; p < run.model->parameters().size(); ++p) {
    const std::string& name = run.model->parameters()[p].name;
    if (HasNoGradient(name)) {
      EXPECT_LT(NormOf(run.model->parameters().gradient(p)), ToleranceOf(precision).zero)
          << name << " in " << precision.name;
      EXPECT_LT(NormOf(expected.model->parameters().value(p)), 1e-7);
      continue;
    }
    EXPECT_LT(
        RelativeError(run.model->parameters().gradient(p), expected.model->parameters().value(p)),
        ToleranceOf(precision).gradients)
        << name << " in " << precision.name;
  }
}

TEST_P(ParityTest, EveryGradientIsThatOfPyTorch) {
  Recorded expected(GetParam(), "gradients");
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    if (!Multiplies(*precision, GetParam())) continue;
    Recorded run(GetParam(), "start", *precision);
    const Batch batch = RecordedBatch(GetParam());
    run.Differentiate(batch, 1.0f / static_cast<float>(batch.target_count));
    ExpectGradients(run, expected, *precision);
  }
}

TEST(Parity, LossAndGradientsWithDropoutOfAttentionAreThoseOfPyTorchWithTheSameMask) {
  for (const std::string family : {"gpt2", "llama", "bert_mlm"}) {
    SCOPED_TRACE(family);
    const Batch batch = RecordedBatch(family);
    const auto count = static_cast<double>(batch.target_count);
    auto text = ReadFile(Env::Posix(), Folder(family) + "/dropped/loss.json");
    ASSERT_TRUE(text.ok());
    const double loss = ParseJson(*text)->at("loss").get<double>();
    Recorded expected(family, "dropped");
    for (const PrecisionRecipe* precision : {&kFp32Precision, &kBf16Precision}) {
      Recorded run(family, "start", *precision, 0.2);
      EXPECT_NEAR(run.Differentiate(batch, static_cast<float>(1 / count)) / count, loss,
                  ToleranceOf(*precision).logits);
      ExpectGradients(run, expected, *precision);
      if (precision != &kFp32Precision) continue;  // bf16 rounds more than dropping changes
      EXPECT_GT(std::abs(run.Loss(batch) / count - loss), 1e-4) << "evaluation drops none";
    }
  }
}

TEST_P(ParityTest, Bf16WeightsAreExportedAsTheyAre) {
  Recorded pure(GetParam(), "start", kBf16PurePrecision);
  FaultEnv env;
  ASSERT_TRUE(ExportWeights(env, "/out", *pure.model, {}).ok());
  TinyRun read(Spec(GetParam()), {&kFp32Precision, false, {}});
  ASSERT_TRUE(ImportWeights(env, "/out", *read.model).ok());
  EXPECT_EQ(read.Parameters(), pure.Parameters());
  // Rounded once, to nearest, when they were imported.
  Recorded full(GetParam(), "start");
  const auto expected = ValuesOf(full.model->parameters());
  const auto got = ValuesOf(pure.model->parameters());
  for (size_t p = 0; p < got.size(); ++p) {
    const bool matrix = pure.model->parameters()[static_cast<int64_t>(p)].shape.rank >= 2;
    for (size_t i = 0; i < got[p].size(); ++i) {
      ASSERT_EQ(got[p][i], matrix ? ToFloat(ToBFloat16(expected[p][i])) : expected[p][i]);
    }
  }
}

TEST_P(ParityTest, TwentyStepsOfAdamWEndAtPyTorchsWeights) {
  Recorded run(GetParam(), "start");
  ASSERT_NO_FATAL_FAILURE(TrainTwentySteps(run, GetParam()));
  Recorded start(GetParam(), "start");
  Recorded expected(GetParam(), "trained");
  for (int64_t p = 0; p < run.model->parameters().size(); ++p) {
    const std::string& name = run.model->parameters()[p].name;
    const TensorView end = expected.model->parameters().value(p);
    if (HasNoGradient(name)) {
      // Rounding below the optimizer's epsilon moves it by next to nothing.
      EXPECT_LT(RelativeError(run.model->parameters().value(p), end), 1e-2) << name;
      continue;
    }
    EXPECT_LT(RelativeError(run.model->parameters().value(p), end), 1e-4) << name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-3) << name;
  }
}

TEST(LinearExpansionParity, TwentyStepsEndAtTheProductsThatPyTorchTrains) {
  ModelSpec spec = FileSpec("llama");
  spec.over_parameterization.kind = "linear_expansion";
  spec.over_parameterization.inner_ratio = 1;
  spec.over_parameterization.layers = {"*.mlp.*"};
  TinyRun run(spec, {&kFp32Precision, true, {}});
  ASSERT_TRUE(ImportWeights(Env::Posix(), Folder("llama") + "/start", *run.model).ok());
  ASSERT_TRUE(run.model->Pack(run.context).ok());
  ASSERT_NO_FATAL_FAILURE(TrainTwentySteps(run, "llama"));
  FaultEnv env;
  ASSERT_TRUE(ExportWeights(env, "/out", *run.model, {}).ok());

  TinyRun merged(FileSpec("llama"), {&kFp32Precision, false, {}});
  ASSERT_TRUE(ImportWeights(env, "/out", *merged.model).ok());
  Recorded expected("llama", "expanded");
  Recorded plain("llama", "trained");
  for (int64_t p = 0; p < merged.model->parameters().size(); ++p) {
    const std::string& name = merged.model->parameters()[p].name;
    const TensorView end = expected.model->parameters().value(p);
    EXPECT_LT(RelativeError(merged.model->parameters().value(p), end), 1e-4) << name;
    if (name.find(".mlp.") == std::string::npos) continue;
    EXPECT_GT(RelativeError(plain.model->parameters().value(p), end), 1e-3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ParityTest,
                         ::testing::Values("bert_classes", "bert_mlm", "gpt2", "gpt2_shared",
                                           "llama", "llama3", "mistral", "mixtral", "qwen2", "vit"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace weft::engine
