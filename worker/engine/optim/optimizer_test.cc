#include "worker/engine/optim/optimizer.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/optim/testing.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

// Groups that scale the rate of a matrix and let a bias decay.
OptimizerSpec SpecOf(const std::string& name) {
  OptimizerSpec spec;
  spec.name = name;
  spec.learning_rate = name == "lars" ? 1.0 : 0.01;
  spec.trust_coefficient = 0.02;
  spec.weight_decay = 0.1;
  spec.epsilon = 1e-6;
  spec.groups = {{.parameters = {"*mlp*"}, .learning_rate_scale = 0.5, .weight_decay = 0.3},
                 {.parameters = {"*c_attn.bias"}, .learning_rate_scale = 2, .weight_decay = 0.05}};
  return spec;
}

ReferenceRule SgdRule(double momentum, bool nesterov) {
  return [=](ReferenceParameter& p, const std::vector<double>& g, double lr, int64_t) {
    std::vector<double>& b = p.State("b");
    for (size_t i = 0; i < g.size(); ++i) {
      const double d = g[i] + p.weight_decay * p.value[i];
      b[i] = momentum * b[i] + d;
      p.value[i] -= lr * (nesterov ? d + momentum * b[i] : b[i]);
    }
  };
}

ReferenceRule LarsRule(double momentum, double trust, double epsilon) {
  return [=](ReferenceParameter& p, const std::vector<double>& g, double lr, int64_t) {
    const double size = Norm(p.value);
    const double local =
        p.matrix ? trust * size / (Norm(g) + p.weight_decay * size + epsilon) : 1.0;
    std::vector<double>& b = p.State("b");
    for (size_t i = 0; i < g.size(); ++i) {
      b[i] = momentum * b[i] + lr * local * (g[i] + p.weight_decay * p.value[i]);
      p.value[i] -= b[i];
    }
  };
}

// Adam's direction for gradients g.
std::vector<double> AdamDirection(ReferenceParameter& p, const std::vector<double>& g, double beta1,
                                  double beta2, double epsilon, int64_t t) {
  std::vector<double>&m = p.State("m"), &v = p.State("v");
  std::vector<double> d(g.size());
  for (size_t i = 0; i < g.size(); ++i) {
    m[i] += (1 - beta1) * (g[i] - m[i]);
    v[i] += (1 - beta2) * (g[i] * g[i] - v[i]);
    d[i] = m[i] / (1 - std::pow(beta1, t)) / (std::sqrt(v[i] / (1 - std::pow(beta2, t))) + epsilon);
  }
  return d;
}

ReferenceRule AdamRule(bool decoupled) {
  return [=](ReferenceParameter& p, std::vector<double> g, double lr, int64_t t) {
    for (size_t i = 0; i < g.size(); ++i) {
      if (decoupled) p.value[i] *= 1 - lr * p.weight_decay;
      if (!decoupled) g[i] += p.weight_decay * p.value[i];
    }
    const std::vector<double> d = AdamDirection(p, g, 0.9, 0.95, 1e-6, t);
    for (size_t i = 0; i < g.size(); ++i) p.value[i] -= lr * d[i];
  };
}

void LambRule(ReferenceParameter& p, const std::vector<double>& g, double lr, int64_t t) {
  std::vector<double> r = AdamDirection(p, g, 0.9, 0.95, 1e-6, t);
  for (size_t i = 0; i < g.size(); ++i) r[i] += p.weight_decay * p.value[i];
  const double ratio = p.matrix ? Norm(p.value) / Norm(r) : 1.0;
  for (size_t i = 0; i < g.size(); ++i) p.value[i] -= lr * ratio * r[i];
}

void LionRule(ReferenceParameter& p, const std::vector<double>& g, double lr, int64_t) {
  std::vector<double>& m = p.State("m");
  for (size_t i = 0; i < g.size(); ++i) {
    const double c = 0.9 * m[i] + 0.1 * g[i];
    p.value[i] -= lr * (std::copysign(c == 0 ? 0.0 : 1.0, c) + p.weight_decay * p.value[i]);
    m[i] = 0.95 * m[i] + 0.05 * g[i];
  }
}

TEST(OptimizerTest, AHundredUpdatesEndWhereFloat64Ends) {
  OptimizerSpec nesterov = SpecOf("sgd");
  nesterov.nesterov = true;
  OptimizerSpec plain = SpecOf("sgd");
  plain.momentum = 0;
  const std::vector<std::pair<OptimizerSpec, ReferenceRule>> cases = {
      {SpecOf("sgd"), SgdRule(0.9, false)}, {nesterov, SgdRule(0.9, true)},
      {plain, SgdRule(0.0, false)},         {SpecOf("lars"), LarsRule(0.9, 0.02, 1e-6)},
      {SpecOf("adam"), AdamRule(false)},    {SpecOf("adamw"), AdamRule(true)},
      {SpecOf("lamb"), LambRule},           {SpecOf("lion"), LionRule},
  };
  for (const auto& [spec, rule] : cases) {
    SCOPED_TRACE(spec.name + (spec.nesterov ? " nesterov" : ""));
    OptimizerRun run(spec);
    const std::vector<double> start = run.reference[1].value;
    for (int64_t t = 1; t <= 100; ++t) {
      run.Update(t);
      run.UpdateReference(t, rule);
    }
    EXPECT_LT(run.Error(), 1e-5);
    std::vector<double> moved = run.reference[1].value;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] -= start[i];
    EXPECT_GT(Norm(moved), 0.1 * Norm(start));
  }
}

TEST(OptimizerTest, ARestoredStateGoesOnBitForBit) {
  for (const char* name : {"sgd", "lars", "adam", "adamw", "lamb", "lion"}) {
    SCOPED_TRACE(name);
    OptimizerRun original(SpecOf(name)), copy(SpecOf(name));
    for (int64_t t = 1; t <= 5; ++t) original.Update(t);
    for (int64_t p = 0; p < copy.parameters.size(); ++p) {
      const TensorView to = copy.parameters.value(p);
      std::memcpy(to.data, original.parameters.value(p).data, to.Bytes());
    }
    const auto from = original.optimizer->StateTensors();
    const auto to = copy.optimizer->StateTensors();
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(from[i].name, to[i].name);
      EXPECT_THAT(from[i].name, ::testing::StartsWith(std::string(name) + "/"));
      std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
    }
    for (int64_t t = 6; t <= 8; ++t) {
      original.Update(t);
      copy.Update(t);
    }
    EXPECT_EQ(copy.Values(), original.Values());
  }
}

TEST(OptimizerTest, PaddedRowsStayZero) {
  OptimizerRun run(SpecOf("adamw"));
  run.Update(1);
  const TensorView wte = run.parameters.padded_value(0);
  for (int64_t i = 23 * 16; i < 64 * 16; ++i) EXPECT_EQ(wte.As<float>()[i], 0.0f);
}

TEST(OptimizerTest, LayerDecayScalesTheMovesOfEqualGradients) {
  OptimizerSpec spec;
  spec.name = "sgd";
  spec.momentum = 0;
  spec.weight_decay = 0;
  spec.learning_rate = 0.125;
  spec.layer_decay = 0.5;
  OptimizerRun run(spec);
  const auto before = run.Values();
  float* gradients = run.parameters.gradients().As<float>();
  for (int64_t i = 0; i < run.parameters.GradientCount(); ++i) gradients[i] = 1;
  ASSERT_TRUE(run.optimizer->Update(run.context, {.learning_rate = 0.125}).ok());
  const auto after = run.Values();
  const auto moved = [&](size_t p) { return before[p][0] - after[p][0]; };
  EXPECT_NEAR(moved(4), 0.125, 1e-6);
  EXPECT_NEAR(moved(3), 0.0625, 1e-6);
  EXPECT_NEAR(moved(0), 0.03125, 1e-6);
}

TEST(OptimizerTest, AnUnknownNameIsRefused) {
  OptimizerRun run(SpecOf("adamw"));
  auto made = NewOptimizer(run.context, SpecOf("adamz"), &run.parameters);
  EXPECT_EQ(made.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(made.status().message(), HasSubstr("adamz"));
}

}  // namespace
}  // namespace weft::engine
