#include "worker/engine/nn/initialization.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/spec/model_family.h"
#include "worker/engine/models/gpt2.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

const ModelOptions kFloat32{&kFp32Precision, true, {}};
constexpr int64_t kLength = 16;

ModelSpec Spec(const std::string& method, int64_t layers = 4, int64_t width = 64) {
  ModelSpec spec = TinyModel();
  spec.layers = layers;
  spec.width = width;
  spec.initialization.method = method;
  return spec;
}

Batch RandomBatch(int64_t sequences) {
  return *RandomTokens(TinyModel().vocab_size, kLength).Get(0, 0, sequences);
}

TensorView ValueOf(const TinyRun& run, const std::string& name) {
  const auto index = run.model->parameters().Find(name);
  WEFT_CHECK(index.ok(), index.status().message());
  return run.model->parameters().value(*index);
}

double MeanSquare(const std::vector<float>& values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return sum / static_cast<double>(values.size());
}

double MeanDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

constexpr const char* kMethods[] = {"gpt2",
                                    "normal",
                                    "truncated_normal",
                                    "xavier_uniform",
                                    "xavier_normal",
                                    "kaiming_uniform",
                                    "kaiming_normal",
                                    "fixup",
                                    "t_fixup",
                                    "rezero",
                                    "skipinit",
                                    "layer_scale",
                                    "mup"};

// Four layers, width 64, MLP 256, biases everywhere.
TEST(InitializationTest, EveryWeightFollowsItsFormula) {
  const double range = 0.02, by_depth = 1 / std::sqrt(8.0), t_fixup = 0.67 * std::pow(4, -0.25);
  const double square = std::sqrt(2.0 / 128), up = std::sqrt(2.0 / 320);
  const double uniform = std::sqrt(3.0);
  // The deviation of a normal cut at two deviations (Johnson, Kotz and Balakrishnan 1994, section
  // 13.10.1).
  const double density = std::exp(-2.0) / std::sqrt(2 * M_PI);
  const double cut = std::sqrt(1 - 4 * density / std::erf(std::sqrt(2.0)));
  const char *tokens = "wte.weight", *qkv = "h.1.attn.c_attn.weight",
             *attended = "h.1.attn.c_proj.weight", *fc = "h.1.mlp.c_fc.weight",
             *down = "h.1.mlp.c_proj.weight", *scale = "h.1.attn.c_proj.scale";
  const struct {
    const char* method;
    const char* parameter;
    double mean;
    double deviation;
    double bound = 0;  // none
    int64_t first_row = 0;
    int64_t rows = 0;  // all
  } cases[] = {
      {"gpt2", tokens, 0, range},
      {"gpt2", qkv, 0, range},
      {"gpt2", down, 0, range * by_depth},
      {"gpt2", "h.1.ln_1.weight", 1, 0},
      {"gpt2", "h.1.mlp.c_fc.bias", 0, 0},
      {"normal", attended, 0, range},
      {"truncated_normal", fc, 0, range * cut, 2 * range},
      {"xavier_uniform", tokens, 0, range},
      {"xavier_uniform", qkv, 0, square, uniform * square},
      {"xavier_uniform", fc, 0, up, uniform * up},
      {"xavier_normal", fc, 0, up},
      {"kaiming_uniform", down, 0, std::sqrt(2.0 / 256), std::sqrt(6.0 / 256)},
      {"kaiming_normal", fc, 0, std::sqrt(2.0 / 64)},
      {"fixup", tokens, 0, 1.0 / 8},
      {"fixup", fc, 0, up * by_depth, uniform * up * by_depth},
      {"fixup", qkv, 0, square, uniform * square, 0, 128},
      {"fixup", qkv, 0, square * by_depth, uniform * square * by_depth, 128, 64},
      {"fixup", attended, 0, 0},
      {"fixup", scale, 1, 0},
      {"fixup", "h.1.mlp.c_proj.input_shift", 0, 0},
      {"t_fixup", tokens, 0, std::pow(36, -0.25) / 8},
      {"t_fixup", qkv, 0, square, uniform * square, 0, 128},
      {"t_fixup", qkv, 0, square * t_fixup, uniform * square * t_fixup, 128, 64},
      {"t_fixup", down, 0, up * t_fixup, uniform * up * t_fixup},
      {"rezero", fc, 0, up, uniform * up},
      {"rezero", scale, 0, 0},
      {"skipinit", attended, 0, range},
      {"skipinit", scale, 0, 0},
      {"layer_scale", attended, 0, range * cut, 2 * range},
      {"layer_scale", scale, 0.25, 0},
      {"mup", tokens, 0, range},
      {"mup", fc, 0, range / 2},
      {"mup", down, 0, range * by_depth / 2},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.method) + " " + c.parameter);
    ModelSpec spec = Spec(c.method);
    spec.initialization.layer_scale = 0.25;
    spec.initialization.base_width = 16;
    const TinyRun run(spec, kFloat32);
    const TensorView view = ValueOf(run, std::string("transformer.") + c.parameter);
    const int64_t columns = view.shape.Elements() / view.shape[0];
    const float* begin = view.As<float>() + c.first_row * columns;
    const float* end = begin + (c.rows > 0 ? c.rows : view.shape[0]) * columns;
    const auto count = static_cast<double>(end - begin);
    double sum = 0, squares = 0, largest = 0;
    for (const float* at = begin; at != end; ++at) {
      sum += *at;
      squares += std::pow(*at - c.mean, 2);
      largest = std::max(largest, std::fabs(*at - c.mean));
    }
    EXPECT_NEAR(sum / count, c.mean, 4 * c.deviation / std::sqrt(count) + 1e-7);
    EXPECT_NEAR(std::sqrt(squares / count), c.deviation, 0.05 * c.deviation + 1e-7);
    if (c.bound == 0) continue;
    EXPECT_LE(largest, c.bound * 1.0001);
    EXPECT_GT(largest, c.bound * 0.98) << "and reaches it";
  }
}

// Normal numbers of deviation 0.1, in vit cut at two of them: a root mean square of 0.088 or 0.1.
TEST(InitializationTest, EveryParameterOfBertAndVitStartsAsItsFamilyDoes) {
  for (const char* family : {"bert", "vit"}) {
    ModelSpec spec = Spec("auto");
    spec.family = family;
    spec.image_size = 16;
    spec.patch_size = 4;
    spec.classes = 10;
    spec.initializer_range = 0.1;
    const bool cut = spec.family == "vit";
    const TinyRun run(spec, kFloat32);
    const ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      SCOPED_TRACE(parameters[i].name);
      const std::vector<float> values = ValuesOf(parameters.value(i));
      if (parameters[i].shape.rank == 1) {
        const bool norm = parameters[i].name.ends_with(".weight");
        for (const float value : values) ASSERT_EQ(value, norm ? 1 : 0);
        continue;
      }
      const double deviation = cut ? 0.088 : 0.1;
      const double error = 4 * deviation / std::sqrt(2.0 * static_cast<double>(values.size()));
      EXPECT_NEAR(std::sqrt(MeanSquare(values)), deviation, error);
      const auto beyond = [](float v) { return std::fabs(v) > 0.2f; };
      if (cut) {
        EXPECT_TRUE(std::none_of(values.begin(), values.end(), beyond));
      }
    }
  }
}

TEST(InitializationTest, TheEngineHasTheParametersThatAreCounted) {
  for (const char* method : kMethods) {
    for (const char* family : {"gpt2", "llama"}) {
      SCOPED_TRACE(std::string(method) + " " + family);
      ModelSpec spec = Spec(method);
      spec.family = family;
      if (!CheckFamily(spec).ok()) continue;  // fixup needs the biases of gpt2
      const TinyRun run(spec, kFloat32);
      const ParameterSet& parameters = run.model->parameters();
      const std::vector<ParameterInfo> counted = ParametersOf(spec);
      ASSERT_EQ(parameters.size(), static_cast<int64_t>(counted.size()));
      for (int64_t i = 0; i < parameters.size(); ++i) {
        const ParameterInfo& info = counted[static_cast<size_t>(i)];
        EXPECT_EQ(parameters[i].name, info.name);
        EXPECT_EQ(parameters[i].shape.Elements(), info.Elements()) << info.name;
        if (IsBranchScale(info.role)) {
          EXPECT_FALSE(parameters[i].decay());
        }
      }
      EXPECT_EQ(ModelShape(spec).counts.Total(), parameters.ElementCount());
    }
  }
}

TEST(InitializationTest, TheEngineKnowsOfEachParameterWhatIsCountedByIt) {
  for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
    for (const char* head : {"auto", "classification"}) {
      SCOPED_TRACE(std::string(family) + " " + head);
      ModelSpec spec = Spec("auto");
      spec.family = family;
      spec.head = head;
      spec.image_size = 16;
      spec.patch_size = 4;
      spec.classes = 10;
      spec.freeze = {"*.1.*weight"};
      if (!CheckFamily(spec).ok()) continue;
      const TinyRun run(spec, kFloat32);
      const ParameterSet& parameters = run.model->parameters();
      for (const ParameterInfo& info : ParametersOf(spec)) {
        const auto index = parameters.Find(info.name);
        ASSERT_TRUE(index.ok()) << info.name;
        const ParameterAttributes& attributes = parameters[*index];
        EXPECT_TRUE(attributes == info) << info.name;
        EXPECT_EQ(parameters[*index].unit, info.unit) << info.name;
      }
    }
  }
}

// What the blocks of `spec` add to the mean square of a stream of standard normal numbers.
double AddedVariance(const ModelSpec& spec) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  ParameterSet parameters;
  BlockStack blocks(&parameters,
                    {.layers = spec.layers,
                     .distinct = spec.layers,
                     .block = Gpt2(spec).block,
                     .remat = [](int64_t layers) { return RematOfPolicies({}, layers, 1); }},
                    DType::kF32);
  SetStarts(spec, parameters);
  WEFT_CHECK(parameters.Allocate(context, false).ok(), "allocate");
  WEFT_CHECK(parameters.Initialize(1).ok(), "initialize");
  WEFT_CHECK(blocks.Pack(context, Repack::kAll).ok(), "pack");
  auto batch = TokenBatch::New(context, RandomBatch(2), 0);
  auto x = Tensor::New(context, Component::kWorkspace, DType::kF32, {batch->count, spec.width});
  PhiloxStream random(PhiloxKey{5, 0, 0});
  for (int64_t i = 0; i < x->shape().Elements(); ++i) {
    x->As<float>()[i] = static_cast<float>(random.Normal());
  }
  const double before = MeanSquare(ValuesOf(x->view()));
  Tape tape(nullptr);
  auto out = blocks.Forward(context, tape, {*x, Value::kNoNode}, *batch);
  WEFT_CHECK(out.ok(), out.status().message());
  auto sum = Sum(context, tape, *out);
  return MeanSquare(ValuesOf(sum->tensor.view())) - before;
}

TEST(InitializationTest, TheVarianceOfTheResidualStreamDoesNotGrowWithDepth) {
  const auto added = [](const char* method, int64_t layers) {
    ModelSpec spec = Spec(method, layers);
    spec.initializer_range = 0.1;
    return AddedVariance(spec);
  };
  EXPECT_NEAR(added("gpt2", 32) / added("gpt2", 4), 1, 0.25);
  EXPECT_GT(added("normal", 32) / added("normal", 4), 5);
}

// Logits of the embeddings alone.
std::vector<float> EmbeddingLogits(const TinyRun& run, const Batch& batch) {
  const auto tokens = ValuesOf(ValueOf(run, "transformer.wte.weight"));
  const auto positions = ValuesOf(ValueOf(run, "transformer.wpe.weight"));
  const auto width = static_cast<size_t>(run.model->spec().width);
  std::vector<float> logits;
  for (size_t t = 0; t < batch.tokens.size(); ++t) {
    for (int64_t v = 0; v < run.model->spec().vocab_size; ++v) {
      double sum = 0;
      for (size_t c = 0; c < width; ++c) {
        const double x = static_cast<double>(tokens[batch.tokens[t] * width + c]) +
                         positions[batch.positions[t] * width + c];
        sum += x * tokens[v * width + c];
      }
      logits.push_back(static_cast<float>(sum));
    }
  }
  return logits;
}

TEST(InitializationTest, BranchesThatStartAtZeroLeaveTheEmbeddings) {
  const Batch batch = RandomBatch(2);
  for (const char* method : {"fixup", "rezero", "xavier_uniform"}) {
    SCOPED_TRACE(method);
    ModelSpec spec = Spec(method);
    spec.norm_position = "none";
    TinyRun run(spec, kFloat32);
    const std::vector<float> logits = run.Logits(batch), expected = EmbeddingLogits(run, batch);
    if (std::string(method) == "xavier_uniform") {
      EXPECT_GT(MeanDistance(logits, expected), 1e-3);
    } else {
      EXPECT_LT(MeanDistance(logits, expected), 1e-6);
    }
  }
  ModelSpec untied = Spec("fixup");
  untied.untied_classifier = true;
  EXPECT_EQ(MeanSquare(TinyRun(untied, kFloat32).Logits(batch)), 0);
}

TEST(InitializationTest, TheFirstStepOfRezeroMovesNothingButTheScalesOfTheBlocks) {
  TinyRun run(Spec("rezero"), kFloat32);
  run.Differentiate(RandomBatch(2));
  const ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name.find(".h.") == std::string::npos) continue;
    const bool scale = IsBranchScale(parameters[i].role) && !parameters[i].bias;
    EXPECT_EQ(MeanSquare(ValuesOf(parameters.gradient(i))) > 0, scale) << parameters[i].name;
  }
}

// How far one SGD step moves the logits, in the mean.
double FirstSgdStep(const std::string& method, int64_t layers) {
  JobSpec job = TinyJob(4);
  job.model = Spec(method, layers, 32);
  job.model.norm_position = "none";
  // The theory is of weights: as many biases add up to as much more.
  job.model.freeze = {"*.bias"};
  if (method == "fixup") job.model.freeze.emplace_back("*shift");
  job.optimizer.name = "sgd";
  job.optimizer.momentum = 0;
  job.optimizer.learning_rate = 1e-3;
  job.optimizer.weight_decay = 0;
  job.train.gradient_clip_norm = 0;
  RandomTokens tokens(job.model.vocab_size, kLength);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  const Batch batch = RandomBatch(2);
  const std::vector<float> before = run.Logits(batch);
  run.Step();
  return MeanDistance(run.Logits(batch), before);
}

TEST(InitializationTest, AStepOfSgdMovesAFixupNetworkAlikeAtAnyDepth) {
  const double shallow = FirstSgdStep("fixup", 4);
  EXPECT_GT(shallow, 0);
  EXPECT_NEAR(FirstSgdStep("fixup", 64) / shallow, 1, 0.5);
  EXPECT_GT(FirstSgdStep("xavier_uniform", 8) / FirstSgdStep("xavier_uniform", 4), 3);
}

TEST(InitializationTest, MupAtItsBaseWidthIsThePlainNetworkBitForBit) {
  std::vector<float> parameters[2];
  for (int mup = 0; mup < 2; ++mup) {
    JobSpec job = TinyJob(4);
    job.model = Spec(mup == 1 ? "mup" : "gpt2", 2, 32);
    job.model.initialization.base_width = 32;
    RandomTokens tokens(job.model.vocab_size, kLength);
    TinyTraining run(job, TinyPlan("fp32"), tokens);
    for (int step = 0; step < 3; ++step) run.Step();
    parameters[mup] = run.Parameters();
  }
  EXPECT_EQ(parameters[0], parameters[1]);
}

// How far three steps move the logits that the first `depth` of three layers give.
std::vector<double> ChangeByDepth(const std::string& method, int64_t width) {
  JobSpec job = TinyJob(4);
  job.model = Spec(method, 3, width);
  job.model.initialization.base_width = 32;
  job.optimizer.learning_rate = 0.01;
  RandomTokens tokens(job.model.vocab_size, kLength);
  TinyTraining run(job, TinyPlan("fp32"), tokens);
  const Batch batch = RandomBatch(2);
  const auto logits = [&](int64_t depth) {
    ModelSpec spec = job.model;
    spec.layers = depth;
    TinyRun part(spec, kFloat32);
    ParameterSet& parameters = part.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const auto from = ValuesOf(ValueOf(run, parameters[i].name));
      std::copy(from.begin(), from.end(), parameters.value(i).As<float>());
    }
    WEFT_CHECK(part.model->Pack(part.context).ok(), "pack");
    return part.Logits(batch);
  };
  std::vector<std::vector<float>> before;
  for (int64_t depth = 1; depth <= 3; ++depth) before.push_back(logits(depth));
  for (int step = 0; step < 3; ++step) run.Step();
  std::vector<double> change;
  for (int64_t depth = 1; depth <= 3; ++depth) {
    change.push_back(MeanDistance(logits(depth), before[static_cast<size_t>(depth) - 1]));
  }
  return change;
}

TEST(InitializationTest, MupLearnsAsFastAtAllWidthsAtEachDepth) {
  std::map<std::string, std::vector<double>> growth;  // from width 32 to 256
  for (const char* method : {"gpt2", "mup"}) {
    const std::vector<double> narrow = ChangeByDepth(method, 32), wide = ChangeByDepth(method, 256);
    for (size_t i = 0; i < narrow.size(); ++i) growth[method].push_back(wide[i] / narrow[i]);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(growth["mup"][i], 0.5) << "after layer " << i + 1;
    EXPECT_LT(growth["mup"][i], 1.7) << "after layer " << i + 1;
    EXPECT_GT(growth["gpt2"][i], 3) << "after layer " << i + 1;
  }
}

TEST(InitializationTest, ExportFoldsTheScalesOfBranchesIntoTheLayersBeforeThem) {
  const std::string folder = ::testing::TempDir() + "folded";
  const Batch batch = RandomBatch(2);
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* method : {"layer_scale", "skipinit"}) {
      SCOPED_TRACE(std::string(family) + " " + method);
      ModelSpec spec = Spec(method, 2, 32);
      spec.family = family;
      TinyRun run(spec, kFloat32);
      ParameterSet& parameters = run.model->parameters();
      PhiloxStream random(PhiloxKey{6, 0, 0});
      for (int64_t i = 0; i < parameters.size(); ++i) {
        const TensorView view = parameters.value(i);
        for (int64_t k = 0; k < view.shape.Elements(); ++k) {
          view.As<float>()[k] += static_cast<float>(0.2 * random.Normal());
        }
      }
      ASSERT_TRUE(run.model->Pack(run.context).ok());
      const Status status = ExportWeights(Env::Posix(), folder, *run.model, {});
      ASSERT_TRUE(status.ok()) << status.message();
      ModelSpec plain = spec;
      plain.initialization.method = "auto";
      TinyRun folded(plain, kFloat32);
      ASSERT_TRUE(ImportWeights(Env::Posix(), folder, *folded.model).ok());
      ASSERT_TRUE(folded.model->Pack(folded.context).ok());
      EXPECT_LT(MeanDistance(folded.Logits(batch), run.Logits(batch)), 1e-5);
    }
  }
  for (const char* method : {"fixup", "t_fixup", "rezero", "mup"}) {
    TinyRun run(Spec(method), kFloat32);
    const Status status = ExportWeights(Env::Posix(), folder, *run.model, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr(std::string("initialization.method ") + method));
  }
}

}  // namespace
}  // namespace weft::engine
