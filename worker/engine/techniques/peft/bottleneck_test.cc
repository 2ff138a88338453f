// Bottleneck adapters: each against a network written down in float64, and a network with them
// against itself without.
#include "worker/engine/techniques/peft/bottleneck.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/bottleneck_cost.h"
#include "worker/engine/testing/float64_matrices.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

constexpr const char* kMethods[] = {"houlsby", "pfeiffer", "parallel"};

JobSpec JobOf(const std::string& method, const std::string& family = "gpt2") {
  JobSpec job = TinyJob(4);
  job.resources.device = "cpu";
  job.model.family = family;
  job.model.peft.method = method;
  job.model.peft.reduction_factor = 4;
  if (method == "parallel") job.model.peft.scaling = 4;
  if (family == "vit") {
    job.model.image_size = 12;
    job.model.patch_size = 3;
    job.model.image_channels = 1;
    job.model.classes = 10;
    job.model.vocab_size = 0;
  }
  job.optimizer.learning_rate = 1e-2;
  job.train.eval_sequences = 8;
  return job;
}

Result<Batch> TinyBatch() {
  return RandomTokens(TinyModel().vocab_size, TinyModel().context).Get(3, 0, 2);
}

/// An activation and its derivative.
struct Function {
  double (*value)(double x);
  double (*derivative)(double x);
};

Function FunctionOf(const std::string& name) {
  if (name == "relu") {
    return {[](double x) { return x > 0 ? x : 0.0; }, [](double x) { return x > 0 ? 1.0 : 0.0; }};
  }
  if (name == "gelu") {
    return {[](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); },
            [](double x) {
              return 0.5 * std::erfc(-x / std::sqrt(2.0)) +
                     x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
            }};
  }
  return {[](double x) { return x / (1 + std::exp(-x)); },
          [](double x) {
            const double s = 1 / (1 + std::exp(-x));
            return s + x * s * (1 - s);
          }};
}

/// One bottleneck in float64, by the formula of its paper.
struct Reference {
  int64_t rows, width, middle;
  Function function;
  double scale;
  bool adds;
  Doubles x, down, down_bias, up, up_bias;

  Doubles Before() const {
    Doubles before = Times(x, Transposed(down, middle, width), rows, width, middle);
    for (int64_t i = 0; i < rows * middle; ++i) before[i] += down_bias[i % middle];
    return before;
  }
  Doubles Active() const {
    Doubles active = Before();
    for (double& value : active) value = function.value(value);
    return active;
  }
  Doubles Result() const {
    Doubles y = Times(Active(), Transposed(up, width, middle), rows, middle, width);
    for (int64_t i = 0; i < rows * width; ++i) {
      y[i] = scale * (y[i] + up_bias[i % width]) + (adds ? x[i] : 0);
    }
    return y;
  }
  struct Gradients {
    Doubles x, down, down_bias, up, up_bias;
  };
  Gradients Differentiate(const Doubles& dy) const {
    const auto sum_rows = [&](const Doubles& of, int64_t columns) {
      Doubles sum(static_cast<size_t>(columns), 0.0);
      for (int64_t i = 0; i < rows * columns; ++i) sum[i % columns] += of[i];
      return sum;
    };
    Gradients d;
    const Doubles scaled = Scaled(dy, scale);
    d.up = Times(Transposed(scaled, rows, width), Active(), width, rows, middle);
    d.up_bias = sum_rows(scaled, width);
    Doubles inner = Times(scaled, up, rows, width, middle);
    const Doubles before = Before();
    for (size_t i = 0; i < inner.size(); ++i) inner[i] *= function.derivative(before[i]);
    d.down = Times(Transposed(inner, rows, middle), x, middle, rows, width);
    d.down_bias = sum_rows(inner, middle);
    d.x = Times(inner, down, rows, middle, width);
    for (size_t i = 0; adds && i < d.x.size(); ++i) d.x[i] += dy[i];
    return d;
  }
};

double Along(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The gradients of the reference by central differences of its result along dy.
void ExpectSlopes(Reference reference, const Doubles& dy, Doubles Reference::*tensor,
                  const Doubles& gradient) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    constexpr double kStep = 1e-6;
    double& value = (reference.*tensor)[i];
    const double start = value;
    value = start + kStep;
    const double above = Along(reference.Result(), dy);
    value = start - kStep;
    const double below = Along(reference.Result(), dy);
    value = start;
    EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-6 * (1 + std::fabs(gradient[i])));
  }
}

TEST(BottleneckTest, IsItsFormulaWithAllGradients) {
  for (const char* method : kMethods) {
    for (const char* activation : {"relu", "gelu", "swish"}) {
      SCOPED_TRACE(std::string(method) + " " + activation);
      ModelSpec model = JobOf(method).model;
      model.peft.non_linearity = activation;
      const bool adds = std::string(method) == "houlsby";
      Allocator allocator;
      Context context;
      context.allocator = &allocator;
      ParameterSet parameters;
      Grafts grafts;
      const ProductOptions products(DType::kF32);
      const GraftSite site{.parameters = &parameters,
                           .products = &products,
                           .sub_layer = SubLayer::kMlp,
                           .name = "mlp",
                           .width = model.width};
      ASSERT_TRUE(PutBottleneck(model, site, grafts).has_value());
      ASSERT_TRUE(parameters.Allocate(context, true).ok());
      ASSERT_EQ(parameters.size(), 4);
      for (int64_t i = 0; i < parameters.size(); ++i) {
        const std::vector<float> values = Normal(
            static_cast<size_t>(parameters[i].shape.Elements()), static_cast<uint64_t>(i), 0.4);
        std::copy(values.begin(), values.end(), parameters.value(i).As<float>());
      }
      ASSERT_TRUE(grafts.Pack(context, Repack::kAll).ok());

      constexpr int64_t kRows = 5;
      const auto tensor = [&](uint64_t seed) {
        auto made = Tensor::New(context, Component::kWorkspace, DType::kF32, {kRows, model.width});
        const std::vector<float> values = Normal(static_cast<size_t>(kRows * model.width), seed);
        std::copy(values.begin(), values.end(), made->As<float>());
        return *made;
      };
      const Tensor x = tensor(11), dy = tensor(12);
      const Reference reference{.rows = kRows,
                                .width = model.width,
                                .middle = BottleneckWidth(model),
                                .function = FunctionOf(activation),
                                .scale = adds ? 1 : model.peft.scaling,
                                .adds = adds,
                                .x = AsDoubles(x),
                                .down = AsDoubles(parameters.value(0)),
                                .down_bias = AsDoubles(parameters.value(1)),
                                .up = AsDoubles(parameters.value(2)),
                                .up_bias = AsDoubles(parameters.value(3))};
      ParameterGradients sums(parameters.DifferentiatedGradients());
      sums.StartStep();
      sums.StartPass({});
      Tape tape(&sums);
      const Value in = tape.NewValue(x, true);
      const bool parallel = std::string(method) == "parallel";
      auto y = grafts.Forward(adds       ? GraftPlace::kSubLayerOutput
                              : parallel ? GraftPlace::kParallelToSubLayer
                                         : GraftPlace::kResidualSum,
                              context, tape, in, {});
      ASSERT_TRUE(y.ok());
      EXPECT_LT(Difference(AsDoubles(y->tensor), reference.Result()), 1e-6);
      ASSERT_TRUE(tape.AddGradient(context, y->node, dy).ok());
      ASSERT_TRUE(tape.RunBackward(context).ok());
      const Reference::Gradients truth = reference.Differentiate(AsDoubles(dy));
      EXPECT_LT(Difference(AsDoubles(tape.TakeGradient(in.node)), truth.x), 1e-6);
      const Doubles* const of_parameters[] = {&truth.down, &truth.down_bias, &truth.up,
                                              &truth.up_bias};
      for (int64_t i = 0; i < parameters.size(); ++i) {
        EXPECT_LT(Difference(AsDoubles(parameters.gradient(i)), *of_parameters[i]), 1e-6)
            << parameters[i].name;
      }
      ExpectSlopes(reference, AsDoubles(dy), &Reference::x, truth.x);
      ExpectSlopes(reference, AsDoubles(dy), &Reference::down, truth.down);
      ExpectSlopes(reference, AsDoubles(dy), &Reference::down_bias, truth.down_bias);
      ExpectSlopes(reference, AsDoubles(dy), &Reference::up, truth.up);
      ExpectSlopes(reference, AsDoubles(dy), &Reference::up_bias, truth.up_bias);
    }
  }
}

TEST(BottleneckTest, StartsAsTheNetworkBitForBit) {
  const Result<Batch> batch = TinyBatch();
  ASSERT_TRUE(batch.ok());
  for (const char* method : kMethods) {
    for (const char* family : {"gpt2", "llama"}) {
      for (const char* precision : {"fp32", "bf16"}) {
        SCOPED_TRACE(std::string(method) + " " + family + " " + precision);
        const JobSpec job = JobOf(method, family);
        TinyRun run(job.model, ModelOptionsOf(TinyPlan(precision)));
        TinyRun plain(WithoutPeft(job.model), ModelOptionsOf(TinyPlan(precision)));
        if (precision == std::string("bf16")) RoundMatrices(plain);
        EXPECT_EQ(run.Logits(*batch), plain.Logits(*batch));
        Perturb(run, 0.1);
        EXPECT_NE(run.Logits(*batch), plain.Logits(*batch));
      }
    }
  }
}

TEST(BottleneckTest, FirstLayersAreDrawnWithADeviationOfAFiftieth) {
  const TinyRun run(JobOf("houlsby").model, ModelOptionsOf(TinyPlan("fp32")));
  const ParameterSet& parameters = run.model->parameters();
  int64_t drawn = 0;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].adapter == AdapterSide::kNone) continue;
    const Doubles values = AsDoubles(parameters.value(i));
    double squares = 0;
    for (const double value : values) squares += value * value;
    const bool first = parameters[i].shape.rank == 2 && parameters[i].shape[0] == 8;
    drawn += first ? 1 : 0;
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), first ? 0.02 : 0,
                first ? 0.003 : 0)
        << parameters[i].name;
  }
  EXPECT_EQ(drawn, 4);
}

TEST(BottleneckTest, ParametersAreThoseThatAreCounted) {
  for (const char* method : kMethods) {
    for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
      for (const std::vector<int64_t>& blocks : std::vector<std::vector<int64_t>>{{}, {1}}) {
        SCOPED_TRACE(std::string(method) + " " + family);
        ModelSpec spec = JobOf(method, family).model;
        spec.peft.layers_to_transform = blocks;
        const std::vector<ParameterInfo> counted = ParametersOf(spec);
        const TinyRun run(spec, ModelOptionsOf(TinyPlan("fp32")));
        const ParameterSet& parameters = run.model->parameters();
        ASSERT_EQ(parameters.size(), std::ssize(counted));
        EXPECT_EQ(parameters.ElementCount(), ModelShape(spec).counts.Total());
        for (const ParameterInfo& info : counted) {
          const auto index = parameters.Find(info.name);
          ASSERT_TRUE(index.ok()) << info.name;
          const Parameter& parameter = parameters[*index];
          EXPECT_TRUE(static_cast<const ParameterAttributes&>(parameter) == info) << info.name;
          EXPECT_EQ(parameter.unit, info.unit) << info.name;
          EXPECT_EQ(parameter.shape.Elements(), info.Elements()) << info.name;
          EXPECT_EQ(info.frozen, info.adapter == AdapterSide::kNone) << info.name;
        }
        // 2 d m + d + m numbers each.
        const int64_t d = spec.width, m = 8;
        const int64_t layers = blocks.empty() ? spec.layers : std::ssize(blocks);
        const int64_t each = std::string(method) == "houlsby" ? 2 : 1;
        EXPECT_EQ(ModelShape(spec).trained, layers * each * (2 * d * m + d + m));
      }
    }
  }
}

TEST(BottleneckTest, TheLossChangesAsGradientsSay) {
  const Result<Batch> batch = TinyBatch();
  ASSERT_TRUE(batch.ok());
  for (const char* method : kMethods) {
    for (const char* family : {"gpt2", "llama"}) {
      SCOPED_TRACE(std::string(method) + " " + family);
      ModelSpec model = JobOf(method, family).model;
      model.peft.non_linearity = "gelu";  // without a kink
      TinyRun run(model, ModelOptionsOf(TinyPlan("fp32")));
      Perturb(run, 0.1);
      const double loss = run.Differentiate(*batch);
      EXPECT_GT(CheckSlopes(run, loss, [&] { return run.Differentiate(*batch); }), 3);
    }
  }
}

TEST(BottleneckTest, TrainingChangesThemAloneWhateverIsRecomputed) {
  CountingTokens tokens(7, 16);
  for (const char* method : kMethods) {
    SCOPED_TRACE(method);
    JobSpec job = JobOf(method, "llama");
    job.schedule.kind = "constant";
    Plan plan = TinyPlan("fp32", 2, 2);
    TinyTraining run(job, plan, tokens);
    plan.block_memory_policy = {"recompute", "attention"};
    TinyTraining recomputed(job, plan, tokens);
    const ParameterSet& parameters = run.model->parameters();
    const std::vector<std::vector<float>> before = ValuesOf(parameters);
    const double first = run.Step().loss;
    EXPECT_EQ(recomputed.Step().loss, first);
    for (int i = 0; i < 25; ++i) EXPECT_EQ(run.Step().loss, recomputed.Step().loss);
    EXPECT_LT(run.trainer->Evaluate()->loss, first - 0.05);
    const std::vector<std::vector<float>> after = ValuesOf(parameters);
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_EQ(after[at] == before[at], parameters[i].adapter == AdapterSide::kNone)
          << parameters[i].name;
    }
    EXPECT_EQ(recomputed.Parameters(), run.Parameters());
  }
}

TEST(BottleneckTest, MeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2, .zero_stage = 1},
      {.data = 2, .zero_stage = 3},
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.pipeline = 2},
      {.context = 2},
  };
  for (const char* method : kMethods) {
    for (const char* family : {"gpt2", "llama"}) {
      MeshCase c{JobOf(method, family), TinyPlan("fp32", 2, 2)};
      c.job.train.steps = 4;
      c.job.train.log_every_steps = 2;
      c.plan.bucket_bytes = 4000;
      const MeshOutcome whole = TrainOnMesh(c).front();
      for (const Parallelism& mesh : meshes) {
        SCOPED_TRACE(std::string(method) + " " + family + " " + mesh.Description());
        ExpectFollows(TrainOnMesh(c.On(mesh)), whole, 2e-5, 1e-4);
      }
    }
  }
}

TEST(BottleneckTest, AFolderHasThemAloneAndTheNetworkIsNotMerged) {
  const Result<Batch> batch = TinyBatch();
  ASSERT_TRUE(batch.ok());
  const std::string folder = ::testing::TempDir() + "bottleneck";
  for (const char* method : kMethods) {
    SCOPED_TRACE(method);
    JobSpec job = JobOf(method);
    job.model.peft.modules_to_save = {"ln_f"};
    TinyRun run(job.model, ModelOptionsOf(TinyPlan("fp32")));
    Perturb(run, 0.1);
    EXPECT_THAT(ExportWeights(Env::Posix(), folder, *run.model, {}).message(),
                HasSubstr("no weights of the network that do the same; hint: --format peft, for"));
    ASSERT_TRUE(ExportAdapterWeights(Env::Posix(), folder, *run.model).ok());
    JobSpec again = JobOf(method);
    again.model.peft = {};
    again.model.peft.method = method;
    again.model.peft.import_path = folder;
    ASSERT_TRUE(ResolveImportedModel(Env::Posix(), again).ok());
    EXPECT_EQ(again.model.peft.scaling, job.model.peft.scaling);
    EXPECT_THAT(again.model.peft.modules_to_save, ::testing::ElementsAre("ln_f"));
    TinyRun read(again.model, ModelOptionsOf(TinyPlan("fp32")));
    ASSERT_TRUE(ImportAdapterWeights(Env::Posix(), folder, *read.model).ok());
    ASSERT_TRUE(read.model->Pack(read.context).ok());
    EXPECT_EQ(read.Parameters(), run.Parameters());
    EXPECT_EQ(read.Logits(*batch), run.Logits(*batch));
  }
}

TEST(BottleneckTest, NamesWhatDoesNotFit) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refusal = [&](const std::string& method, void (*change)(PeftSpec & spec)) {
    ModelSpec model = JobOf(method).model;
    change(model.peft);
    return std::string(NewModel(context, model, {}).status().message());
  };
  EXPECT_THAT(refusal("houlsby", [](PeftSpec& spec) { spec.scaling = 2; }),
              HasSubstr("scaling with method houlsby; hint: model.peft.method parallel"));
  EXPECT_THAT(refusal("pfeiffer", [](PeftSpec& spec) { spec.reduction_factor = 64; }),
              HasSubstr("leaves nothing of model.width 32"));
  EXPECT_THAT(refusal("lora", [](PeftSpec&) {}),
              HasSubstr("reduction_factor with method lora; hint: model.peft.method houlsby"));
  EXPECT_THAT(refusal("parallel", [](PeftSpec& spec) { spec.target_modules = {"c_attn"}; }),
              HasSubstr("parallel has no adapters of weights"));
  EXPECT_THAT(refusal("houlsby", [](PeftSpec& spec) { spec.layers_to_transform = {2}; }),
              HasSubstr("has 2, and the model has blocks 0 to 1"));
}

}  // namespace
}  // namespace weft::engine
