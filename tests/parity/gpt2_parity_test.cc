// Compares the engine with PyTorch and transformers, whose results make_fixtures.py recorded in
// float64: logits, loss, every gradient, and the weights after 20 steps of AdamW.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/safetensors.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

const std::string kFolder = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2";

template <class T>
std::vector<T> ReadTensor(const std::string& name) {
  auto file = SafetensorsFile::Open(Env::Posix(), kFolder + "/batch.safetensors");
  WEFT_CHECK(file.ok(), file.status().message());
  const SafetensorsView* view = file->Find(name);
  WEFT_CHECK(view != nullptr, name);
  std::vector<T> values(view->bytes.size() / sizeof(T));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

ModelSpec Spec() {
  auto spec = ReadModelConfig(Env::Posix(), kFolder + "/start", ModelSpec());
  WEFT_CHECK(spec.ok(), spec.status().message());
  return *spec;
}

Batch RecordedBatch() {
  Batch batch;
  batch.sequences = 3;
  batch.length = 20;
  batch.tokens = ReadTensor<int32_t>("tokens");
  batch.targets = ReadTensor<int32_t>("targets");
  for (int i = 0; i < 60; ++i) batch.positions.push_back(i % 20);
  batch.sequence_starts = {0, 20, 40, 60};
  batch.target_count = 58;
  return batch;
}

// A model with the weights of a recorded folder.
struct Recorded : TinyRun {
  explicit Recorded(const std::string& name, const PrecisionRecipe& precision = kFp32Precision)
      : TinyRun(Spec(), {&precision, true, {}}) {
    Status status = ImportWeights(Env::Posix(), kFolder + "/" + name, *model);
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
};

// |got - expected| / |expected| as vectors.
double RelativeError(const float* got, const float* expected, size_t count) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < count; ++i) {
    difference += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

double RelativeError(const TensorView& got, const TensorView& expected) {
  return RelativeError(got.As<float>(), expected.As<float>(),
                       static_cast<size_t>(expected.shape.Elements()));
}

// How far from float64 the roundings of a network of this size may lead.
struct ParityTolerance {
  double logits = 0;
  double gradients = 0;
};

ParityTolerance ToleranceOf(const PrecisionRecipe& precision) {
  switch (precision.activations) {
    case DType::kBF16:
      return {2e-2, 5e-2};
    case DType::kF16:
      return {3e-3, 8e-3};
    default:
      return {1e-5, 1e-4};
  }
}

TEST(Gpt2ParityTest, LogitsAndLossAreThoseOfPyTorch) {
  const std::vector<float> expected = ReadTensor<float>("logits");
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    const double tolerance = ToleranceOf(*precision).logits;
    SCOPED_TRACE(precision->name);
    Recorded run("start", *precision);
    const std::vector<float> logits = run.Logits(RecordedBatch());
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_LT(RelativeError(logits.data(), expected.data(), expected.size()), tolerance);
    EXPECT_NEAR(run.Loss(RecordedBatch()) / 58, ReadTensor<float>("loss")[0], tolerance);
  }
}

TEST(Gpt2ParityTest, EveryGradientIsThatOfPyTorch) {
  Recorded expected("gradients");
  for (const PrecisionRecipe* precision : AllPrecisions()) {
    Recorded run("start", *precision);
    run.Differentiate(RecordedBatch(), 1.0f / 58);
    for (int64_t p = 0; p < run.model->parameters().size(); ++p) {
      EXPECT_LT(
          RelativeError(run.model->parameters().gradient(p), expected.model->parameters().value(p)),
          ToleranceOf(*precision).gradients)
          << run.model->parameters()[p].name << " in " << precision->name;
    }
  }
}

TEST(Gpt2ParityTest, Bf16WeightsAreExportedAsTheyAre) {
  Recorded pure("start", kBf16PurePrecision);
  FaultEnv env;
  ASSERT_TRUE(ExportWeights(env, "/out", *pure.model, {}).ok());
  TinyRun read(Spec(), {&kFp32Precision, false, {}});
  ASSERT_TRUE(ImportWeights(env, "/out", *read.model).ok());
  EXPECT_EQ(read.Parameters(), pure.Parameters());
  // Rounded once, to nearest, when they were imported.
  Recorded full("start");
  const auto expected = ValuesOf(full.model->parameters());
  const auto got = ValuesOf(pure.model->parameters());
  for (size_t p = 0; p < got.size(); ++p) {
    const bool matrix = pure.model->parameters()[static_cast<int64_t>(p)].shape.rank >= 2;
    for (size_t i = 0; i < got[p].size(); ++i) {
      ASSERT_EQ(got[p][i], matrix ? ToFloat(ToBFloat16(expected[p][i])) : expected[p][i]);
    }
  }
}

// The recorded batch at every step.
class RecordedTokens : public BatchSource {
 public:
  int64_t Sequences() const override { return 3; }
  Result<Batch> Get(int64_t, int64_t, int64_t) override { return RecordedBatch(); }
};

TEST(Gpt2ParityTest, TwentyStepsOfAdamWEndAtPyTorchsWeights) {
  Recorded run("start");
  JobSpec job;
  job.model = run.model->spec();
  job.train.steps = 20;
  job.train.global_batch = 3;
  job.train.sequence_length = 20;
  job.train.gradient_clip_norm = 1.0;
  job.schedule.kind = "constant";
  job.schedule.warmup_steps = 0;
  job.optimizer.learning_rate = 1e-3;
  job.optimizer.beta2 = 0.95;
  job.optimizer.epsilon = 1e-6;
  job.optimizer.weight_decay = 0.1;
  Plan plan;
  plan.precision = "fp32";
  plan.micro_batch = 3;
  RecordedTokens tokens;
  auto trainer = Trainer::New(
      job, plan, {.context = &run.context, .model = run.model.get(), .train = &tokens});
  ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
  while (!(*trainer)->finished()) {
    auto report = (*trainer)->Step();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
  }
  Recorded start("start");
  Recorded expected("trained");
  for (int64_t p = 0; p < run.model->parameters().size(); ++p) {
    const std::string& name = run.model->parameters()[p].name;
    const TensorView end = expected.model->parameters().value(p);
    EXPECT_LT(RelativeError(run.model->parameters().value(p), end), 1e-4) << name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-3) << name;
  }
}

}  // namespace
}  // namespace weft::engine
