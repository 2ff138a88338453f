// Compares the engine with PyTorch and transformers, whose results make_fixtures.py recorded in
// float64: logits, loss, every gradient, and the weights after 20 steps of AdamW.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"
#include "common/json.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

std::string Folder(const std::string& family) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + family;
}

template <class T>
std::vector<T> ReadTensor(const std::string& family, const std::string& name) {
  auto file = SafetensorsFile::Open(Env::Posix(), Folder(family) + "/batch.safetensors");
  WEFT_CHECK(file.ok(), file.status().message());
  const SafetensorsView* view = file->Find(name);
  WEFT_CHECK(view != nullptr, name);
  std::vector<T> values(view->bytes.size() / sizeof(T));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

// That of the folder. A shared block is there once, as the model of one layer that it also is.
ModelSpec FileSpec(const std::string& family) {
  auto spec = ReadModelConfig(Env::Posix(), Folder(family) + "/start", ModelSpec());
  WEFT_CHECK(spec.ok(), spec.status().message());
  return *spec;
}

ModelSpec Spec(const std::string& family, double attention_dropout = 0) {
  ModelSpec spec = FileSpec(family);
  spec.attention_dropout = attention_dropout;
  if (family == "gpt2_shared") {
    spec.layers = 3;
    spec.distinct_blocks = 1;
  }
  return spec;
}

// Rows of a pair each, padded, with a few masked tokens or a label.
Batch RecordedTexts(const std::string& family) {
  Batch batch;
  batch.sequences = 3;
  batch.length = 20;
  batch.tokens = ReadTensor<int32_t>(family, "tokens");
  batch.token_types = ReadTensor<int32_t>(family, "token_types");
  batch.lengths = ReadTensor<int32_t>(family, "lengths");
  const std::vector<int32_t> targets = ReadTensor<int32_t>(family, "targets");
  for (int i = 0; i < 60; ++i) batch.positions.push_back(i % 20);
  for (int32_t s = 0; s < 3; ++s) {
    batch.sequence_starts.push_back(s * 20);
    if (batch.lengths[s] < 20) batch.sequence_starts.push_back(s * 20 + batch.lengths[s]);
  }
  batch.sequence_starts.push_back(60);
  batch.target_count = 3;
  if (targets.size() == 3) {
    batch.labels = targets;
    return batch;
  }
  batch.targets = targets;
  for (int32_t i = 0; i < 60; ++i) {
    if (targets[i] >= 0) batch.target_rows.push_back(i);
  }
  batch.target_count = static_cast<int64_t>(batch.target_rows.size());
  return batch;
}

Batch RecordedImages(const std::string& family) {
  Batch batch;
  batch.sequences = 3;
  batch.length = 10;  // nine patches and the class
  batch.pixels = ReadTensor<float>(family, "pixels");
  batch.labels = ReadTensor<int32_t>(family, "targets");
  for (int i = 0; i < 30; ++i) batch.positions.push_back(i % 10);
  batch.sequence_starts = {0, 10, 20, 30};
  batch.target_count = 3;
  return batch;
}

Batch RecordedBatch(const std::string& family) {
  if (family == "vit") return RecordedImages(family);
  if (family.starts_with("bert")) return RecordedTexts(family);
  Batch batch;
  batch.sequences = 3;
  batch.length = 20;
  batch.tokens = ReadTensor<int32_t>(family, "tokens");
  batch.targets = ReadTensor<int32_t>(family, "targets");
  for (int i = 0; i < 60; ++i) batch.positions.push_back(i % 20);
  batch.sequence_starts = {0, 20, 40, 60};
  batch.target_count = 58;
  return batch;
}

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

double Norm(const TensorView& values) {
  double squares = 0;
  for (int64_t i = 0; i < values.shape.Elements(); ++i) {
    squares += std::pow(static_cast<double>(values.As<float>()[i]), 2);
  }
  return std::sqrt(squares);
}

// All keys moved alike change no attention weight: without rotary positions a key's bias has no
// gradient, only rounding.
bool HasNoGradient(const std::string& name) {
  return name.ends_with("attention.self.key.bias") ||
         name.ends_with("attention.attention.key.bias");
}

// The gradients of `run` are the parameters of `expected`.
void ExpectGradients(const TinyRun& run, const TinyRun& expected,
                     const PrecisionRecipe& precision) {
  for (int64_t p = 0; p < run.model->parameters().size(); ++p) {
    const std::string& name = run.model->parameters()[p].name;
    if (HasNoGradient(name)) {
      EXPECT_LT(Norm(run.model->parameters().gradient(p)), ToleranceOf(precision).zero)
          << name << " in " << precision.name;
      EXPECT_LT(Norm(expected.model->parameters().value(p)), 1e-7);
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

// The recorded batch at every step.
class RecordedTokens : public BatchSource {
 public:
  explicit RecordedTokens(Batch batch) : batch_(std::move(batch)) {}
  int64_t Sequences() const override { return 3; }
  Result<Batch> Get(int64_t, int64_t, int64_t) override { return batch_; }

 private:
  Batch batch_;
};

// As make_fixtures.py trains.
void TrainTwentySteps(TinyRun& run, const std::string& family) {
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
  RecordedTokens tokens(RecordedBatch(family));
  auto trainer = Trainer::New(
      job, plan, {.context = &run.context, .model = run.model.get(), .train = &tokens});
  ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
  while (!(*trainer)->finished()) {
    auto report = (*trainer)->Step();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
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

/// A base model with an adapter of peft (make_adapter_fixtures.py), for example gpt2/lora.
struct RecordedAdapter : TinyRun {
  RecordedAdapter(const std::string& adapter, const std::string& name)
      : TinyRun(SpecOf(adapter), {&kFp32Precision, true, {}}) {
    Status status = ImportWeights(Env::Posix(), Folder(FamilyOf(adapter)) + "/start", *model);
    if (status.ok() && !name.empty()) {
      status = ImportAdapterWeights(Env::Posix(), Folder(adapter) + "/" + name, *model);
    }
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
  static std::string FamilyOf(const std::string& adapter) {
    return adapter.substr(0, adapter.find('/'));
  }
  static ModelSpec SpecOf(const std::string& adapter) {
    ModelSpec spec = FileSpec(FamilyOf(adapter));
    auto peft = ReadAdapterConfig(Env::Posix(), Folder(adapter) + "/start", spec);
    WEFT_CHECK(peft.ok(), peft.status().message());
    spec.peft = *peft;
    return spec;
  }
};

class PeftParity : public ::testing::TestWithParam<const char*> {};

TEST_P(PeftParity, TwentyStepsEndAtTheAdapterThatPeftTrains) {
  const std::string adapter = GetParam();
  RecordedAdapter run(adapter, "start");
  ASSERT_NO_FATAL_FAILURE(TrainTwentySteps(run, RecordedAdapter::FamilyOf(adapter)));
  const RecordedAdapter start(adapter, "start"), expected(adapter, "trained");
  // Read again from what is written: of ranks that are left out nothing is compared.
  FaultEnv env;
  ASSERT_TRUE(ExportAdapterWeights(env, "/adapter", *run.model).ok());
  RecordedAdapter own_end(adapter, "");
  ASSERT_TRUE(ImportAdapterWeights(env, "/adapter", *own_end.model).ok());
  const ParameterSet& parameters = own_end.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].frozen || HasNoGradient(parameters[p].name)) continue;
    const TensorView end = expected.model->parameters().value(p);
    if (Norm(end) == 0) {  // no rank is left
      EXPECT_EQ(Norm(parameters.value(p)), 0) << parameters[p].name;
      continue;
    }
    EXPECT_LT(RelativeError(parameters.value(p), end), 1e-4) << parameters[p].name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-4) << parameters[p].name;
  }
  // Its export is what peft merges.
  const Status exported = ExportWeights(env, "/out", *run.model, {});
  if (!Env::Posix().FileExists(Folder(adapter) + "/merged.safetensors")) {
    EXPECT_THAT(exported.message(), ::testing::HasSubstr("no weights of the network that do"));
    return;
  }
  ASSERT_TRUE(exported.ok()) << exported.message();
  auto own = SafetensorsFile::Open(env, "/out/model.safetensors");
  auto merged = SafetensorsFile::Open(Env::Posix(), Folder(adapter) + "/merged.safetensors");
  ASSERT_TRUE(own.ok() && merged.ok());
  EXPECT_GT(merged->tensors().size(), 0u);
  for (const SafetensorsView& tensor : merged->tensors()) {
    const SafetensorsView* const same = own->Find(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    ASSERT_EQ(same->shape, tensor.shape) << tensor.name;
    const auto view = [](const SafetensorsView& of) {
      return TensorView(const_cast<std::byte*>(of.bytes.data()), DType::kF32,
                        {static_cast<int64_t>(of.bytes.size() / sizeof(float))});
    };
    EXPECT_LT(RelativeError(view(*same), view(tensor)), 1e-4) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PeftParity,
    ::testing::Values("gpt2/adalora", "llama/adalora", "gpt2/lora", "gpt2/dora", "gpt2/ia3",
                      "gpt2/bias", "llama/lora", "llama/patterns", "llama/dora", "llama/pissa",
                      "llama/olora", "llama/ia3", "llama/miss", "bert_mlm/lora", "bert_mlm/ia3",
                      "vit/lora", "vit/miss", "llama/loha", "llama/lokr", "llama/oft", "llama/vera",
                      "gpt2/vera", "bert_mlm/loha", "bert_mlm/lokr", "bert_mlm/oft",
                      "gpt2/embedding", "llama/embedding", "gpt2/tokens", "llama/tokens",
                      "gpt2/tokens_alone", "llama/tokens_alone", "bert_mlm/embedding",
                      "mistral/lora", "qwen2/lora", "qwen2/dora", "mixtral/lora"));

/// The network that makes the virtual tokens of a fixture, whose layers of peft have these names.
void LoadEncoder(const std::string& adapter, const std::string& name, Model& model) {
  auto file =
      SafetensorsFile::Open(Env::Posix(), Folder(adapter) + "/" + name + "/encoder.safetensors");
  WEFT_CHECK(file.ok(), file.status().message());
  ParameterSet& parameters = model.parameters();
  size_t projected[2] = {0, 0};  // numbers of the projection that all layers have together
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].frozen) continue;
    std::string tensor = parameters[p].name.substr(parameters[p].name.find('.') + 1);
    const auto count = static_cast<size_t>(parameters[p].shape.Elements());
    size_t first = 0;
    if (parameters[p].block >= 0) {
      tensor = parameters[p].bias ? "transform.2.bias" : "transform.2.weight";
      size_t& done = projected[parameters[p].bias ? 1 : 0];
      first = done;
      done += count;
    }
    const SafetensorsView* const view = file->Find(tensor);
    WEFT_CHECK(view != nullptr && view->bytes.size() >= (first + count) * sizeof(float), tensor);
    std::memcpy(parameters.value(p).data, view->bytes.data() + first * sizeof(float),
                count * sizeof(float));
  }
}

/// A base model with virtual tokens of peft.
struct RecordedVirtualTokens : TinyRun {
  RecordedVirtualTokens(const std::string& adapter, const std::string& name)
      : TinyRun(SpecOf(adapter), {&kFp32Precision, true, {}}) {
    const std::string base = RecordedAdapter::FamilyOf(adapter);
    Status status = ImportWeights(Env::Posix(), Folder(base) + "/start", *model);
    if (status.ok() && model->spec().peft.encoder_hidden_size > 0) {
      LoadEncoder(adapter, name, *model);
    } else if (status.ok()) {
      status = ImportAdapterWeights(Env::Posix(), Folder(adapter) + "/" + name, *model);
    }
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
  static ModelSpec SpecOf(const std::string& adapter) {
    ModelSpec spec = RecordedAdapter::SpecOf(adapter);
    const bool encodes = adapter.ends_with("p_tuning");
    if (encodes) spec.peft.method = "p_tuning";
    spec.peft.prefix_projection = adapter.ends_with("projected_prefix");
    if (encodes || spec.peft.prefix_projection) spec.peft.encoder_hidden_size = 24;
    return spec;
  }
};

class VirtualTokenParity : public ::testing::TestWithParam<const char*> {};

TEST_P(VirtualTokenParity, TwentyStepsEndAtTheVectorsThatPeftTrains) {
  const std::string adapter = GetParam();
  RecordedVirtualTokens run(adapter, "start");
  ASSERT_NO_FATAL_FAILURE(TrainTwentySteps(run, RecordedAdapter::FamilyOf(adapter)));
  const RecordedVirtualTokens start(adapter, "start"), expected(adapter, "trained");
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].frozen) continue;
    const TensorView end = expected.model->parameters().value(p);
    EXPECT_LT(RelativeError(parameters.value(p), end), 1e-4) << parameters[p].name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-4) << parameters[p].name;
  }
  // Its folder has what peft's has.
  FaultEnv env;
  ASSERT_TRUE(ExportAdapterWeights(env, "/out", *run.model).ok());
  auto own = SafetensorsFile::Open(env, "/out/adapter_model.safetensors");
  auto of_peft =
      SafetensorsFile::Open(Env::Posix(), Folder(adapter) + "/trained/adapter_model.safetensors");
  ASSERT_TRUE(own.ok() && of_peft.ok());
  ASSERT_EQ(own->tensors().size(), 1u);
  const SafetensorsView &mine = own->tensors()[0], &theirs = of_peft->tensors()[0];
  EXPECT_EQ(mine.name, theirs.name);
  ASSERT_EQ(mine.shape, theirs.shape);
  const auto floats = [](const SafetensorsView& of) {
    return reinterpret_cast<const float*>(of.bytes.data());
  };
  EXPECT_LT(RelativeError(floats(mine), floats(theirs), mine.bytes.size() / sizeof(float)), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Cases, VirtualTokenParity,
                         ::testing::Values("gpt2/prompt", "llama/prompt", "gpt2/p_tuning",
                                           "llama/p_tuning", "gpt2/prefix", "llama/prefix",
                                           "gpt2/projected_prefix", "llama/projected_prefix"));

// The signs of singular vectors are free; the products of the factors are not.
TEST(PeftParityStarts, FromWeightsAreThoseOfPeft) {
  for (const std::string adapter : {"llama/pissa", "llama/olora"}) {
    SCOPED_TRACE(adapter);
    const RecordedAdapter own(adapter, ""), of_peft(adapter, "start");
    const ParameterSet& parameters = own.model->parameters();
    for (int64_t p = 0; p < parameters.size(); ++p) {
      if (parameters[p].adapter != AdapterSide::kInput) continue;
      const int64_t rank = parameters[p].shape[0], in = parameters[p].shape[1];
      const int64_t out = parameters[p + 1].shape[0];
      const auto product = [&](const RecordedAdapter& of) {
        const float* const a = of.model->parameters().value(p).As<float>();
        const float* const b = of.model->parameters().value(p + 1).As<float>();
        std::vector<float> values(static_cast<size_t>(out * in), 0.0f);
        for (int64_t i = 0; i < out; ++i) {
          for (int64_t k = 0; k < rank; ++k) {
            for (int64_t c = 0; c < in; ++c) values[i * in + c] += b[i * rank + k] * a[k * in + c];
          }
        }
        return values;
      };
      std::vector<float> mine = product(own), theirs = product(of_peft);
      EXPECT_LT(RelativeError({mine.data(), DType::kF32, {out * in}},
                              {theirs.data(), DType::kF32, {out * in}}),
                1e-4)
          << parameters[p].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ParityTest,
                         ::testing::Values("bert_classes", "bert_mlm", "gpt2", "gpt2_shared",
                                           "llama", "llama3", "mistral", "mixtral", "qwen2", "vit"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace weft::engine
