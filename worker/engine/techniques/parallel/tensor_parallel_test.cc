#include "worker/engine/nn/tensor_parallel.h"

#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/comm/rank_threads.h"
#include "worker/engine/techniques/parallel/data_parallel.h"
#include "worker/engine/techniques/parallel/mesh_groups.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr AxisSet kTensor = {MeshAxis::kTensor};
constexpr int64_t kSteps = 10;
constexpr int64_t kLength = 16;

/// Learned positions, biases, a tied classifier, dropout, and a vocabulary that no degree divides.
ModelSpec Gpt2Model() {
  ModelSpec spec = TinyModel();
  spec.heads = 4;
  spec.vocab_size = 51;
  spec.dropout = 0.1;
  return spec;
}

/// Grouped queries with as many heads of keys as there may be ranks, and no biases.
ModelSpec LlamaModel(bool untied) {
  ModelSpec spec = Gpt2Model();
  spec.family = "llama";
  spec.width = 64;
  spec.heads = 8;
  spec.kv_heads = 4;
  spec.mlp_width = 48;
  spec.dropout = 0;
  spec.untied_classifier = untied;
  return spec;
}

struct Case {
  std::string name;
  ModelSpec model;
  int64_t tensor = 2;
  int64_t data = 1;
  bool sequence = false;
  std::string policy = "keep";
  std::string precision = "fp32";

  JobSpec Job() const {
    JobSpec job = TinyJob(4);
    job.model = model;
    job.train.steps = kSteps;
    job.train.precision = precision;
    job.train.log_every_steps = 3;
    job.train.gradient_clip_norm = 0.5;
    job.optimizer.learning_rate = 1e-2;
    return job;
  }
  Plan PlanOf(int64_t data_ranks, int64_t tensor_ranks) const {
    Plan plan = TinyPlan(precision, 2, 2 / data_ranks);
    plan.mesh.data = data_ranks;
    plan.mesh.tensor = tensor_ranks;
    plan.bucket_bytes = 4000;
    plan.block_memory_policy.assign(static_cast<size_t>(model.layers), policy);
    return plan;
  }
};

/// The groups of a rank.
struct Ranks {
  MeshGroups groups;
  std::optional<TensorParallel> tensor;
  int64_t data_rank = 0;

  Ranks(Collective& world, const Plan& plan, bool sequence) {
    const MeshLayout layout(plan.mesh);
    auto made = MeshGroups::Make(&world, layout, {kTensor, kGradientAxes});
    WEFT_CHECK(made.ok(), made.status().message());
    groups = *std::move(made);
    if (Collective* group = groups.Along(kTensor)) tensor.emplace(group, sequence);
    data_rank = layout.CoordinatesOf(world.rank())[static_cast<size_t>(MeshAxis::kData)];
  }
  const TensorParallel* of_tensor() const { return tensor ? &*tensor : nullptr; }
};

ModelOptions OptionsOf(const Plan& plan, const Ranks& ranks) {
  ModelOptions options = ModelOptionsOf(plan);
  options.tensor = ranks.of_tensor();
  return options;
}

/// One rank of a training, or all of it.
struct Rank : TinyRun {
  const Ranks& ranks;
  RandomTokens tokens;
  std::unique_ptr<DataParallel> reducer;
  std::unique_ptr<Trainer> trainer;

  Rank(const Case& c, const Plan& plan, const Ranks& own)
      : TinyRun(c.model, OptionsOf(plan, own)), ranks(own), tokens(c.model.vocab_size, kLength) {
    if (Collective* group = own.groups.Along(kGradientAxes)) {
      reducer = std::make_unique<DataParallel>(group, &model->parameters(), plan.bucket_bytes);
    }
    auto made = Trainer::New(c.Job(), plan,
                             {.context = &context,
                              .model = model.get(),
                              .train = &tokens,
                              .validation = &tokens,
                              .reducer = reducer.get(),
                              .rank = own.data_rank,
                              .tensor = own.of_tensor()});
    WEFT_CHECK(made.ok(), made.status().message());
    trainer = *std::move(made);
  }

  StepReport Step() {
    auto report = trainer->Step();
    WEFT_CHECK(report.ok(), report.status().message());
    return *report;
  }
};

/// What a rank's training came to.
struct Outcome {
  std::vector<StepReport> reports;
  double evaluation = 0;
  std::vector<std::vector<float>> values;  ///< By parameter.
  std::vector<Shard> shards;
  std::vector<Shape> shapes;
};

Outcome Train(const Case& c, const Plan& plan, Collective& world) {
  const Ranks ranks(world, plan, c.sequence);
  Rank rank(c, plan, ranks);
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) outcome.reports.push_back(rank.Step());
  auto evaluation = rank.trainer->Evaluate();
  WEFT_CHECK(evaluation.ok(), evaluation.status().message());
  outcome.evaluation = evaluation->loss;
  const ParameterSet& parameters = rank.model->parameters();
  outcome.values = ValuesOf(parameters);
  for (int64_t i = 0; i < parameters.size(); ++i) {
    outcome.shards.push_back(parameters[i].shard);
    outcome.shapes.push_back(parameters[i].shape);
  }
  return outcome;
}

std::vector<Outcome> TrainOn(const Case& c, int64_t data, int64_t tensor) {
  std::vector<Outcome> outcomes(static_cast<size_t>(data * tensor));
  RunRanks(static_cast<int>(data * tensor), std::chrono::seconds(20), [&](Collective& world) {
    outcomes[static_cast<size_t>(world.rank())] = Train(c, c.PlanOf(data, tensor), world);
  });
  return outcomes;
}

/// The part of a logical tensor that a shard is.
std::vector<float> Part(const std::vector<float>& whole, const Shard& shard, const Shape& shape) {
  std::vector<float> part(static_cast<size_t>(shape.Elements()));
  shard.ForEachRun(shape, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(whole.begin() + from, count, part.begin() + to);
  });
  return part;
}

/// Largest difference, in units of the largest magnitude of `truth`.
double Distance(const std::vector<float>& values, const std::vector<float>& truth) {
  double largest = 0, difference = 0;
  EXPECT_EQ(values.size(), truth.size());
  for (size_t i = 0; i < std::min(values.size(), truth.size()); ++i) {
    largest = std::max<double>(largest, std::fabs(truth[i]));
    difference = std::max<double>(difference, std::fabs(values[i] - truth[i]));
  }
  return largest == 0 ? difference : difference / largest;
}

std::vector<Case> Cases() {
  const ModelSpec gpt2 = Gpt2Model(), llama = LlamaModel(true), tied = LlamaModel(false);
  return {{"gpt2", gpt2, 2},
          {"llama", llama, 4},
          {"gpt2 with data parallelism, recomputed", gpt2, 2, 2, false, "recompute"},
          {"gpt2, rows dealt out", gpt2, 4, 1, true},
          {"llama, tied, rows dealt out, recomputed", tied, 2, 2, true, "recompute"}};
}

/// First values, and gradients of a batch.
struct Gradients {
  double loss = 0;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradients;  ///< None of frozen ones.
  std::vector<Shard> shards;
  std::vector<Shape> shapes;
};

Batch SomeBatch(const Case& c) {
  RandomTokens tokens(c.model.vocab_size, kLength);
  Batch batch = *tokens.Get(0, 0, 2);
  batch.targets[3] = kernels::kIgnoreTarget;
  return batch;
}

Gradients Differentiate(const Case& c, const Plan& plan, const Ranks& ranks) {
  TinyRun run(c.model, OptionsOf(plan, ranks));
  const ParameterSet& parameters = run.model->parameters();
  Gradients result;
  result.values = ValuesOf(parameters);
  result.loss = run.Differentiate(SomeBatch(c), 0.1f);
  if (ranks.tensor) {
    WEFT_CHECK(SumPartialGradients(run.context, *ranks.tensor, parameters).ok(), "sum");
  }
  for (int64_t i = 0; i < parameters.size(); ++i) {
    result.gradients.push_back(ValuesOf(parameters.gradient(i)));
    result.shards.push_back(parameters[i].shard);
    result.shapes.push_back(parameters[i].shape);
  }
  return result;
}

TEST(TensorParallel, FirstValuesAndGradientsArePartsOfThoseOfTheWhole) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    Gradients whole;
    RunRanks(1, std::chrono::seconds(20), [&](Collective& world) {
      const Plan plan = c.PlanOf(1, 1);
      whole = Differentiate(c, plan, Ranks(world, plan, false));
    });
    std::vector<Gradients> ranks(static_cast<size_t>(c.tensor));
    RunRanks(static_cast<int>(c.tensor), std::chrono::seconds(20), [&](Collective& world) {
      const Plan plan = c.PlanOf(1, c.tensor);
      ranks[static_cast<size_t>(world.rank())] =
          Differentiate(c, plan, Ranks(world, plan, c.sequence));
    });
    size_t shared = 0;
    for (const Gradients& own : ranks) {
      EXPECT_NEAR(own.loss, whole.loss, 1e-6 * whole.loss);
      for (size_t i = 0; i < own.values.size(); ++i) {
        SCOPED_TRACE(i);
        const Shard& shard = own.shards[i];
        EXPECT_EQ(own.values[i], Part(whole.values[i], shard, own.shapes[i]));
        EXPECT_LT(Distance(own.gradients[i], Part(whole.gradients[i], shard, own.shapes[i])), 1e-5);
        if (shard.whole()) {
          EXPECT_EQ(own.gradients[i], ranks[0].gradients[i]);
        }
        shared += shard.whole() ? 0 : 1;
      }
    }
    EXPECT_GT(shared, 4u) << "each block has matrices that are shared";
  }
}

/// What a rank sends and receives in one forward and backward pass.
struct Volumes {
  CollectiveTotals all_reduce, reduce_scatter, all_gather;
};

Volumes VolumesOf(const Case& c) {
  Volumes volumes;
  RunRanks(static_cast<int>(c.tensor), std::chrono::seconds(20), [&](Collective& world) {
    const Plan plan = c.PlanOf(1, c.tensor);
    const Ranks ranks(world, plan, c.sequence);
    TinyRun run(c.model, OptionsOf(plan, ranks));
    run.Differentiate(SomeBatch(c));
    if (world.rank() != 0) return;
    CollectiveAccount& account = ranks.tensor->group().account();
    volumes = {account.totals(CollectiveKind::kAllReduce),
               account.totals(CollectiveKind::kReduceScatter),
               account.totals(CollectiveKind::kAllGather)};
  });
  return volumes;
}

// Shoeybi et al. 2019: two all-reduces of the residual stream a layer in each direction; and
// Korthikanti et al. 2022: a reduce-scatter and an all-gather, hence the same bytes on the wire, in
// the place of each.
TEST(TensorParallel, SendsWhatTheFormulasSay) {
  Case c{"volumes", Gpt2Model(), 4};
  const auto layers = c.model.layers;
  const double tokens = 2 * kLength;
  const double stream = tokens * static_cast<double>(c.model.width) * sizeof(float);
  const double softmax = 4 * 3 * tokens * sizeof(float);
  // The embedding's sum, and the gradient of what the classifier reads.
  const Volumes plain = VolumesOf(c);
  EXPECT_EQ(plain.all_reduce.calls, 4 * layers + 2);
  EXPECT_EQ(plain.all_reduce.bytes, static_cast<double>(4 * layers + 2) * stream);
  EXPECT_EQ(plain.all_gather.bytes, softmax);
  EXPECT_EQ(plain.reduce_scatter.calls, 0);

  c.policy = "recompute";
  const Volumes recomputed = VolumesOf(c);
  EXPECT_EQ(recomputed.all_reduce.calls, 6 * layers + 2);

  c.policy = "keep";
  c.sequence = true;
  const Volumes dealt_out = VolumesOf(c);
  EXPECT_EQ(dealt_out.all_reduce.calls, 0);
  EXPECT_EQ(dealt_out.reduce_scatter.bytes, static_cast<double>(4 * layers + 2) * stream);
  // And one more for each input of a product, of which only the own rows are kept.
  EXPECT_EQ(dealt_out.all_gather.bytes, static_cast<double>(6 * layers + 2) * stream + softmax);
}

TEST(TensorParallel, TrainingFollowsThatOfOneRank) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const Outcome whole = TrainOn(c, 1, 1).front();
    const std::vector<Outcome> ranks = TrainOn(c, c.data, c.tensor);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      SCOPED_TRACE(rank);
      const Outcome& own = ranks[rank];
      for (size_t step = 0; step < kSteps; ++step) {
        const StepReport &report = own.reports[step], &truth = whole.reports[step];
        EXPECT_NEAR(report.loss, truth.loss, 1e-5 * truth.loss) << step;
        EXPECT_NEAR(report.gradient_norm, truth.gradient_norm, 1e-4 * truth.gradient_norm);
        EXPECT_EQ(report.loss, ranks[0].reports[step].loss) << "the same on all ranks";
        EXPECT_EQ(report.gradient_norm, ranks[0].reports[step].gradient_norm);
        EXPECT_EQ(report.targets, truth.targets);
        ASSERT_EQ(report.norms.size(), truth.norms.size());
        for (size_t g = 0; g < truth.norms.size(); ++g) {
          EXPECT_NEAR(report.norms[g].parameter, truth.norms[g].parameter,
                      1e-4 * truth.norms[g].parameter);
          EXPECT_NEAR(report.norms[g].gradient, truth.norms[g].gradient,
                      1e-3 * truth.norms[g].gradient);
        }
      }
      EXPECT_NEAR(own.evaluation, whole.evaluation, 1e-5 * whole.evaluation);
      for (size_t i = 0; i < own.values.size(); ++i) {
        EXPECT_LT(Distance(own.values[i], Part(whole.values[i], own.shards[i], own.shapes[i])),
                  2e-3);
        if (own.shards[i].whole()) {
          EXPECT_EQ(own.values[i], ranks[0].values[i]) << "bit for bit on all ranks";
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
