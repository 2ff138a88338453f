#include "worker/engine/models/gpt2.h"

#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/formats/huggingface.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

const ModelOptions kFloat32{&kFp32Precision, true, {}};
constexpr int64_t kLength = 16;

Batch RandomBatch(int64_t sequences, int64_t length = kLength) {
  auto batch = RandomTokens(TinyModel().vocab_size, length).Get(0, 0, sequences);
  return *std::move(batch);
}

double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double highest = 0;
  for (size_t i = 0; i < a.size(); ++i) highest = std::max<double>(highest, std::fabs(a[i] - b[i]));
  return highest;
}

TEST(Gpt2Test, ParametersAreThoseOfHuggingFacesFiles) {
  TinyRun run(TinyModel(), kFloat32);
  const auto expected = HuggingFaceTensors(TinyModel());
  const ParameterSet& parameters = run.model->parameters();
  EXPECT_EQ(parameters.size(), static_cast<int64_t>(expected.size()));
  for (const HuggingFaceTensor& tensor : expected) {
    auto index = parameters.Find(tensor.name);
    ASSERT_TRUE(index.ok()) << tensor.name;
    const Shape& shape = parameters[*index].shape;
    ASSERT_EQ(shape.rank, static_cast<int>(tensor.shape.size())) << tensor.name;
    for (int i = 0; i < shape.rank; ++i) EXPECT_EQ(shape[i], tensor.shape[i]) << tensor.name;
    EXPECT_EQ(parameters[*index].decay(), tensor.shape.size() == 2) << tensor.name;
  }
}

TEST(Gpt2Test, InitialWeightsFollowTheirNameAndDistribution) {
  ModelSpec small = TinyModel();
  ModelSpec deep = small;
  deep.layers = 8;
  deep.initializer_range = small.initializer_range;
  TinyRun two(small, kFloat32);
  TinyRun eight(deep, kFloat32);
  struct Case {
    const char* name;
    double mean;
    double deviation;  // of the eight-layer model
  };
  for (const Case& c :
       {Case{"transformer.wte.weight", 0, 0.02},
        Case{"transformer.h.1.attn.c_attn.weight", 0, 0.02},
        Case{"transformer.h.1.mlp.c_proj.weight", 0, 0.005},
        Case{"transformer.h.1.attn.c_proj.weight", 0, 0.005},
        Case{"transformer.h.1.ln_1.weight", 1, 0}, Case{"transformer.h.1.mlp.c_fc.bias", 0, 0}}) {
    const TensorView view =
        eight.model->parameters().value(*eight.model->parameters().Find(c.name));
    const int64_t count = view.shape.Elements();
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) sum += view.As<float>()[i];
    for (int64_t i = 0; i < count; ++i) squares += std::pow(view.As<float>()[i] - sum / count, 2);
    EXPECT_NEAR(sum / count, c.mean, 5 * c.deviation / std::sqrt(count)) << c.name;
    EXPECT_NEAR(std::sqrt(squares / count), c.deviation, 0.1 * c.deviation) << c.name;
  }
  const char* shared = "transformer.h.1.mlp.c_fc.weight";
  const TensorView a = two.model->parameters().value(*two.model->parameters().Find(shared));
  const TensorView b = eight.model->parameters().value(*eight.model->parameters().Find(shared));
  for (int64_t i = 0; i < a.shape.Elements(); ++i) ASSERT_EQ(a.As<float>()[i], b.As<float>()[i]);
}

TEST(Gpt2Test, LossIsTheCrossEntropyOfTheLogitsOverTheRealVocabulary) {
  TinyRun run(TinyModel(), kFloat32);
  const Batch batch = RandomBatch(2);
  const std::vector<float> logits = run.Logits(batch);
  const auto vocabulary = static_cast<size_t>(TinyModel().vocab_size);
  double expected = 0;
  for (size_t row = 0; row < batch.targets.size(); ++row) {
    double total = 0;
    for (size_t c = 0; c < vocabulary; ++c) total += std::exp(logits[row * vocabulary + c]);
    expected += std::log(total) - logits[row * vocabulary + batch.targets[row]];
  }
  EXPECT_NEAR(run.Loss(batch), expected, 1e-5 * expected);
  EXPECT_NEAR(run.Differentiate(batch), expected, 1e-5 * expected);
}

TEST(Gpt2Test, DropoutChangesWithTheStepNotWithTheSplit) {
  for (std::optional<double> ModelSpec::*which :
       {&ModelSpec::dropout, &ModelSpec::attention_dropout}) {
    ModelSpec spec = TinyModel();
    spec.*which = 0.3;
    // Weights large enough that attention is not far from choosing.
    spec.initializer_range = 0.2;
    TinyRun run(spec, kFloat32);
    const Batch both = RandomBatch(2);
    const double together = run.Differentiate(both);
    Batch first = RandomBatch(1);
    Batch second = *RandomTokens(spec.vocab_size, kLength).Get(0, 1, 1);
    EXPECT_NEAR(run.Differentiate(first, 1.0f, 0) + run.Differentiate(second, 1.0f, 1), together,
                1e-4);
    EXPECT_EQ(run.Differentiate(both), together);
    run.context.step = 1;
    EXPECT_GT(std::fabs(run.Differentiate(both) - together), 1e-3);
    spec.*which = 0;
    EXPECT_EQ(run.Loss(both), TinyRun(spec, kFloat32).Loss(both)) << "evaluation drops none";
  }
}

TEST(Gpt2Test, PackedDocumentsAreLikeDocumentsAlone) {
  TinyRun run(TinyModel(), kFloat32);
  const Batch one = RandomBatch(1, 6);
  const Batch other = *RandomTokens(TinyModel().vocab_size, 10, 8).Get(0, 0, 1);
  Batch packed = one;
  packed.length = 16;
  for (auto member : {&Batch::tokens, &Batch::targets, &Batch::positions}) {
    (packed.*member).insert((packed.*member).end(), (other.*member).begin(), (other.*member).end());
  }
  packed.sequence_starts = {0, 6, 16};
  packed.target_count = 16;

  std::vector<float> alone = run.Logits(one);
  const std::vector<float> second = run.Logits(other);
  alone.insert(alone.end(), second.begin(), second.end());
  EXPECT_LT(MaxDifference(run.Logits(packed), alone), 1e-5);
  run.Differentiate(one);
  std::vector<float> gradients = run.Gradients();
  run.Differentiate(other);
  const std::vector<float> of_other = run.Gradients();
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] += of_other[i];
  run.Differentiate(packed);
  EXPECT_LT(MaxDifference(run.Gradients(), gradients), 1e-4);

  packed.sequence_starts = {0, 16};
  EXPECT_GT(MaxDifference(run.Logits(packed), alone), 1e-3) << "the border makes no difference";
}

TEST(Gpt2Test, SpecsThatDoNotFitAreRefused) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto message = [&](auto change) {
    ModelSpec spec = TinyModel();
    change(spec);
    auto model = NewModel(context, spec, kFloat32);
    EXPECT_EQ(model.status().code(), StatusCode::kInvalid);
    return model.status().message();
  };
  EXPECT_THAT(message([](ModelSpec& s) { s.vocab_size = 0; }), HasSubstr("vocab_size 0"));
  EXPECT_THAT(message([](ModelSpec& s) { s.heads = 3; }), HasSubstr("model.heads 3"));
  EXPECT_THAT(message([](ModelSpec& s) { s.heads = 32; }), HasSubstr("8 to 256"));
  EXPECT_THAT(message([](ModelSpec& s) { s.family = "rnn"; }), HasSubstr("'rnn'"));
}

TEST(Gpt2Test, HostileBatchesAreRefused) {
  TinyRun run(TinyModel(), kFloat32);
  const auto refuse = [&](auto change) {
    Batch batch = RandomBatch(2);
    change(batch);
    auto tokens = TokenBatch::New(run.context, batch, 0);
    if (!tokens.ok()) return tokens.status();
    Tape tape(nullptr);
    BatchLoss loss;
    return run.model->Loss(run.context, tape, *tokens, 1.0f, &loss);
  };
  EXPECT_EQ(refuse([](Batch& b) { b.tokens.pop_back(); }).code(), StatusCode::kInvalid);
  EXPECT_EQ(refuse([](Batch& b) { b.sequence_starts.clear(); }).code(), StatusCode::kInvalid);
  EXPECT_EQ(refuse([](Batch& b) { b.sequence_starts = {0, 40, 32}; }).code(), StatusCode::kInvalid);
  EXPECT_EQ(refuse([](Batch& b) { b.tokens[5] = 50; }).code(), StatusCode::kInvalid);
  EXPECT_EQ(refuse([](Batch& b) { b.tokens[5] = -1; }).code(), StatusCode::kInvalid);
  EXPECT_EQ(refuse([](Batch& b) { b.positions[5] = 16; }).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::engine
