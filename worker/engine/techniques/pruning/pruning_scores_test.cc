#include "worker/engine/techniques/pruning/pruning_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/parameter_list.h"
#include "common/rng.h"
#include "worker/engine/techniques/pruning/synaptic_flow.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

/// A network whose weights are larger than when it starts, so that masks are felt, and what gives
/// gradients of a batch of it.
struct ScoredNetwork {
  static constexpr int64_t kSequences = 4;

  JobSpec job = TinyJob(kSequences);
  Plan plan = TinyPlan("fp32");
  TinyRun run{job.model, kFloat32Options()};
  Batch batch = *RandomTokens(job.model.vocab_size, job.model.context).Get(0, 0, kSequences);
  std::vector<int64_t> matrices;
  TrainingParts parts;

  static ModelOptions kFloat32Options() { return {&PrecisionOf("fp32"), true, {}}; }

  ScoredNetwork() {
    ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].block_matrix()) continue;
      matrices.push_back(i);
      const TensorView value = parameters.value(i);
      for (int64_t k = 0; k < value.shape.Elements(); ++k) value.As<float>()[k] *= 6;
    }
    WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
    parts.job = &job;
    parts.plan = &plan;
    parts.context = &run.context;
    parts.parameters = &parameters;
    parts.sum_over_replica = [](std::span<double>) { return OkStatus(); };
    parts.values_changed = [this] { WEFT_CHECK(run.model->Pack(run.context).ok(), "pack"); };
    parts.compute_gradients = [this](double scale) {
      Differentiate(static_cast<float>(scale));
      return OkStatus();
    };
  }

  static double Targets() { return kSequences * 16.0; }

  /// The mean loss, whose gradients the parameters then have.
  double Differentiate(float scale = 1) {
    return run.Differentiate(batch, scale / static_cast<float>(Targets())) / Targets();
  }

  /// `measure`() where the weights are multiplied by masks of 1 + `step` `direction`.
  template <class Measure>
  auto Masked(double step, const PruningScores& direction, Measure&& measure) {
    ParameterSet& parameters = run.model->parameters();
    std::vector<std::vector<float>> start;
    for (size_t m = 0; m < matrices.size(); ++m) {
      const TensorView value = parameters.value(matrices[m]);
      start.push_back(ValuesOf(value));
      for (size_t i = 0; i < start[m].size(); ++i) {
        value.As<float>()[i] = static_cast<float>(start[m][i] * (1 + step * direction[m][i]));
      }
    }
    parts.values_changed();
    const auto measured = measure();
    for (size_t m = 0; m < matrices.size(); ++m) {
      std::copy(start[m].begin(), start[m].end(), parameters.value(matrices[m]).As<float>());
    }
    parts.values_changed();
    return measured;
  }

  double HalfSquareOfGradient() {
    Differentiate();
    double sum = 0;
    for (const int64_t index : matrices) {
      for (const float g : ValuesOf(run.model->parameters().gradient(index))) {
        sum += static_cast<double>(g) * g;
      }
    }
    return sum / 2;
  }
};

double Norm(const PruningScores& scores) {
  double sum = 0;
  for (const std::vector<float>& matrix : scores) {
    for (const float x : matrix) sum += static_cast<double>(x) * x;
  }
  return std::sqrt(sum);
}

TEST(PruningScoresTest, SensitivityIsTheDerivativeOfTheLossByTheMask) {
  ScoredNetwork network;
  auto scores = ConnectionSensitivity(network.parts, network.matrices);
  ASSERT_TRUE(scores.ok()) << scores.status().message();
  for (size_t m = 0; m < scores->size(); ++m) {
    const std::vector<float>& score = (*scores)[m];
    const auto best = std::max_element(score.begin(), score.end()) - score.begin();
    PruningScores mask;
    for (const std::vector<float>& matrix : *scores) mask.emplace_back(matrix.size(), 0.0f);
    mask[m][best] = 1;
    constexpr double kStep = 0.1;
    const auto loss = [&] { return network.Differentiate(); };
    const double slope =
        (network.Masked(kStep, mask, loss) - network.Masked(-kStep, mask, loss)) / (2 * kStep);
    EXPECT_NEAR(std::fabs(slope), score[best], 0.02 * score[best]) << m;
  }
}

TEST(PruningScoresTest, GradientFlowIsTheDerivativeOfTheGradientByTheMask) {
  ScoredNetwork network;
  const std::vector<std::vector<float>> start = ValuesOf(network.run.model->parameters());
  auto scores = GradientFlow(network.parts, network.matrices);
  ASSERT_TRUE(scores.ok()) << scores.status().message();
  EXPECT_EQ(ValuesOf(network.run.model->parameters()), start) << "as they were";
  // Along the scores themselves the derivative is their norm.
  PruningScores direction = *scores;
  const double norm = Norm(direction);
  for (std::vector<float>& matrix : direction) {
    for (float& x : matrix) x = static_cast<float>(x / norm);
  }
  constexpr double kStep = 0.02;
  const auto measure = [&] { return network.HalfSquareOfGradient(); };
  const auto slope_along = [&](const PruningScores& along) {
    return (network.Masked(kStep, along, measure) - network.Masked(-kStep, along, measure)) /
           (2 * kStep);
  };
  EXPECT_NEAR(slope_along(direction), norm, 0.02 * norm);
  // And along other directions in one matrix their product with it: none of its scores is missing.
  PhiloxStream random({.seed = 11, .step = 0, .site = 0});
  for (size_t m = 0; m < scores->size(); ++m) {
    const std::vector<float>& own = (*scores)[m];
    const double norm_here = Norm({own});
    for (int draw = 0; draw < 5; ++draw) {
      PruningScores along;
      for (const std::vector<float>& matrix : *scores) along.emplace_back(matrix.size(), 0.0f);
      double product = 0;
      for (size_t i = 0; i < own.size(); ++i) {
        // Near the scores in size, so that the product is about as large as their norm.
        const double size = std::fabs(own[i]) / norm_here + 0.1 / std::sqrt(own.size());
        along[m][i] =
            static_cast<float>(random.Below(4) == 0 ? -size : std::copysign(size, own[i]));
        product += static_cast<double>(along[m][i]) * own[i];
      }
      EXPECT_NEAR(slope_along(along), product, 0.03 * norm_here) << "matrix " << m;
    }
  }
}

TEST(PruningScoresTest, ALossScaleThatOverflowsIsLowered) {
  ScoredNetwork network;
  network.plan.precision = "fp16";
  const auto plain = ConnectionSensitivity(network.parts, network.matrices);
  network.parts.compute_gradients = [&](double scale) {
    network.Differentiate(static_cast<float>(scale));
    if (scale > 300) {
      network.run.model->parameters().gradient(network.matrices[0]).As<float>()[5] = INFINITY;
    }
    return OkStatus();
  };
  const auto scores = ConnectionSensitivity(network.parts, network.matrices);
  ASSERT_TRUE(scores.ok() && plain.ok()) << scores.status().message();
  for (size_t m = 0; m < scores->size(); ++m) {
    for (size_t i = 0; i < (*scores)[m].size(); ++i) {
      EXPECT_NEAR((*scores)[m][i], (*plain)[m][i], 1e-6 * Norm(*plain));
    }
  }
  network.parts.compute_gradients = [&](double) {
    network.run.model->parameters().gradient(network.matrices[0]).As<float>()[5] = NAN;
    return OkStatus();
  };
  EXPECT_EQ(ConnectionSensitivity(network.parts, network.matrices).status().code(),
            StatusCode::kInvalid);
}

// With ZeRO 1 and 2 a rank has a part of each gradient. It scores that part, as if it had all.
// GraSP gathers the gradients that it moves values along, once.
TEST(PruningScoresTest, RanksScoreWhatTheyHaveGradientsOf) {
  ScoredNetwork network;
  ParameterSet& parameters = network.run.model->parameters();
  const auto first_of = [&](int64_t index) { return parameters[index].shape.Elements() / 3; };
  const auto count_of = [&](int64_t index) { return parameters[index].shape.Elements() / 2; };
  std::vector<UpdatedParameters> updated(1);
  for (const int64_t index : network.matrices) {
    float* const gradient = parameters.gradient(index).As<float>() + first_of(index);
    updated[0].parts.push_back(
        PartOf(parameters, index, first_of(index), count_of(index), gradient));
  }
  int64_t gathers = 0;
  const auto ways = {std::pair{&ConnectionSensitivity, int64_t{0}},
                     std::pair{&GradientFlow, std::ssize(network.matrices)}};
  for (const auto& [scores_of, expected_gathers] : ways) {
    SCOPED_TRACE(expected_gathers);
    TrainingParts parts = network.parts;
    const auto whole = scores_of(parts, network.matrices);
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    parts.updated = updated;
    parts.shards_updates = true;
    parts.sum_over_parts = [](std::span<double>) { return OkStatus(); };
    parts.gather_parts = [&](int64_t index, std::span<const float> own) {
      EXPECT_EQ(std::ssize(own), count_of(index));
      ++gathers;
      return Result<std::vector<float>>(ValuesOf(parameters.gradient(index)));
    };
    gathers = 0;
    const auto own = scores_of(parts, network.matrices);
    ASSERT_TRUE(own.ok()) << own.status().message();
    EXPECT_EQ(gathers, expected_gathers);
    for (size_t m = 0; m < whole->size(); ++m) {
      const auto begin = (*whole)[m].begin() + first_of(network.matrices[m]);
      const std::vector<float> part(begin, begin + count_of(network.matrices[m]));
      EXPECT_EQ((*own)[m], part) << m;
    }
  }
}

FlowMatrix RandomMatrix(int64_t rows, int64_t columns, uint32_t site) {
  PhiloxStream stream({.seed = 5, .step = 0, .site = site});
  FlowMatrix matrix = {rows, columns, std::vector<float>(static_cast<size_t>(rows * columns))};
  for (float& x : matrix.magnitudes) x = static_cast<float>(std::fabs(stream.Normal()));
  return matrix;
}

// All that flows in flows out: the scores of each matrix add up to the whole.
TEST(PruningScoresTest, SynapticFlowIsConservedInAChain) {
  FlowNetwork chain;
  chain.width = 8;
  const std::vector<int64_t> widths = {8, 16, 4, 32, 2};
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    chain.matrices.push_back(RandomMatrix(widths[i + 1], widths[i], static_cast<uint32_t>(i)));
  }
  for (size_t i = 0; i < chain.matrices.size(); i += 2) {
    chain.stages.push_back({.branches = {{.parts = {{i, 0, chain.matrices[i].rows}}, .out = i + 1}},
                            .residual = false});
  }
  for (const std::vector<float>& scores : SynapticFlow(chain)) {
    EXPECT_NEAR(std::accumulate(scores.begin(), scores.end(), 0.0), 1, 1e-5);
  }
}

/// The sum of the outputs of the linear network, straight from its definition.
double OutputOf(const ModelSpec& model, const std::vector<ParameterInfo>& parameters,
                const std::vector<FlowMatrix>& matrices) {
  using Vector = std::vector<double>;
  const auto product = [&](const FlowMatrix& w, const Vector& x) {
    Vector y(static_cast<size_t>(w.rows), 0.0);
    for (int64_t r = 0; r < w.rows; ++r) {
      for (int64_t c = 0; c < w.columns; ++c) y[r] += w.magnitudes[r * w.columns + c] * x[c];
    }
    return y;
  };
  Vector x(static_cast<size_t>(model.width), 1.0);
  const int64_t head = model.width / model.heads;
  const int64_t kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const int64_t block = model.distinct_blocks > 0 ? 0 : layer;
    Vector mixed(static_cast<size_t>(model.width), 0.0);
    for (size_t m = 0; m < parameters.size(); ++m) {
      const ParameterInfo& p = parameters[m];
      if (p.block != block || !IsAttention(p.role)) continue;
      const Vector y = product(matrices[m], x);
      if (p.role == ParameterRole::kAttentionOutput) continue;
      const int64_t of_queries = p.role == ParameterRole::kQueriesKeysValues ? model.width : 0;
      const int64_t kv = kv_heads * head;
      for (int64_t i = 0; i < model.width; ++i) {
        const int64_t shared = i / head / (model.heads / kv_heads) * head + i % head;
        if (of_queries > 0) {
          mixed[i] += y[i] + y[of_queries + shared] + y[of_queries + kv + shared];
        } else {
          mixed[i] += matrices[m].rows == model.width ? y[i] : y[shared];
        }
      }
    }
    const Vector before = x;
    for (size_t m = 0; m < parameters.size(); ++m) {
      if (parameters[m].block != block || parameters[m].role != ParameterRole::kAttentionOutput) {
        continue;
      }
      const Vector y = product(matrices[m], mixed);
      for (int64_t i = 0; i < model.width; ++i) x[i] += y[i];
    }
    const Vector stream = x;
    for (int64_t expert = model.experts > 0 ? 0 : -1; expert < std::max<int64_t>(model.experts, 0);
         ++expert) {
      Vector inside;
      for (size_t m = 0; m < parameters.size(); ++m) {
        const ParameterInfo& p = parameters[m];
        if (p.block != block || p.expert != expert || p.role != ParameterRole::kMlpUp) continue;
        const Vector y = product(matrices[m], stream);
        inside.resize(y.size(), 0.0);
        for (size_t i = 0; i < y.size(); ++i) inside[i] += y[i];
      }
      for (size_t m = 0; m < parameters.size(); ++m) {
        const ParameterInfo& p = parameters[m];
        if (p.block != block || p.expert != expert || p.role != ParameterRole::kMlpDown) continue;
        const Vector y = product(matrices[m], inside);
        for (int64_t i = 0; i < model.width; ++i) x[i] += y[i];
      }
    }
  }
  return std::accumulate(x.begin(), x.end(), 0.0);
}

// The output is linear in each weight (where no two layers share it): twice the weight adds its
// score.
TEST(PruningScoresTest, SynapticFlowOfATransformerIsTheDerivativeOfItsOutput) {
  for (const char* family : {"gpt2", "llama", "mixtral", "bert"}) {
    SCOPED_TRACE(family);
    ModelSpec model = TinyModel();
    model.width = 8;
    model.heads = 4;
    model.family = family == std::string("mixtral") ? "llama" : family;
    if (model.family == "llama") model.kv_heads = 2;
    if (family == std::string("mixtral")) model.experts = 2;
    std::vector<ParameterInfo> parameters;
    for (ParameterInfo& parameter : ParametersOf(model)) {
      if (parameter.block_matrix()) parameters.push_back(std::move(parameter));
    }
    std::vector<const ParameterAttributes*> attributes;
    std::vector<std::vector<int64_t>> shapes;
    for (const ParameterInfo& parameter : parameters) {
      attributes.push_back(&parameter);
      shapes.push_back(parameter.shape);
    }
    FlowNetwork network = FlowNetworkOf(model, attributes, shapes);
    for (size_t m = 0; m < network.matrices.size(); ++m) {
      FlowMatrix& matrix = network.matrices[m];
      matrix = RandomMatrix(matrix.rows, matrix.columns, static_cast<uint32_t>(m));
    }
    const PruningScores scores = SynapticFlow(network);
    const double whole = OutputOf(model, parameters, network.matrices);
    for (size_t m = 0; m < scores.size(); ++m) {
      for (size_t i = 0; i < scores[m].size(); i += 7) {
        std::vector<FlowMatrix> twice = network.matrices;
        twice[m].magnitudes[i] *= 2;
        const double added = OutputOf(model, parameters, twice) / whole - 1;
        EXPECT_NEAR(scores[m][i], added, 1e-5 * added + 1e-9) << parameters[m].name << " " << i;
      }
    }
  }
}

// Layers that share a block add up what flows through it.
TEST(PruningScoresTest, SynapticFlowOfSharedBlocksIsThatOfAllTheirLayers) {
  ModelSpec model = TinyModel();
  model.width = 8;
  model.distinct_blocks = 1;
  std::vector<ParameterInfo> parameters;
  for (ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.block_matrix()) parameters.push_back(std::move(parameter));
  }
  std::vector<const ParameterAttributes*> attributes;
  std::vector<std::vector<int64_t>> shapes;
  for (const ParameterInfo& parameter : parameters) {
    attributes.push_back(&parameter);
    shapes.push_back(parameter.shape);
  }
  FlowNetwork network = FlowNetworkOf(model, attributes, shapes);
  for (size_t m = 0; m < network.matrices.size(); ++m) {
    FlowMatrix& matrix = network.matrices[m];
    matrix = RandomMatrix(matrix.rows, matrix.columns, static_cast<uint32_t>(m));
  }
  const PruningScores scores = SynapticFlow(network);
  const double whole = OutputOf(model, parameters, network.matrices);
  constexpr float kStep = 1e-2f;
  for (size_t m = 0; m < scores.size(); ++m) {
    for (size_t i = 0; i < scores[m].size(); i += 31) {
      double output[2];
      for (int side = 0; side < 2; ++side) {
        std::vector<FlowMatrix> moved = network.matrices;
        moved[m].magnitudes[i] *= side == 0 ? 1 - kStep : 1 + kStep;
        output[side] = OutputOf(model, parameters, moved);
      }
      const double slope = (output[1] - output[0]) / (2 * kStep) / whole;
      EXPECT_NEAR(scores[m][i], slope, 1e-3 * slope + 1e-8) << parameters[m].name << " " << i;
    }
  }
}

}  // namespace
}  // namespace weft::engine
