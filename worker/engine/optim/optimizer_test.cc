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

ReferenceRule AdafactorRule(double exponent, double clip) {
  return [=](ReferenceParameter& p, const std::vector<double>& g, double lr, int64_t t) {
    const auto time = static_cast<double>(t);
    const double fresh = std::pow(time, -exponent);
    const auto elements = static_cast<double>(g.size());
    const double size =
        std::max(1e-3, Norm(p.value) / std::sqrt(elements)) * std::min(lr, 1 / std::sqrt(time));
    std::vector<double> v(g.size());
    if (p.matrix) {
      std::vector<double>&rows = p.State("rows", p.rows), &columns = p.State("columns", p.columns);
      double total = 0;
      for (double& r : rows) r *= 1 - fresh;
      for (double& c : columns) c *= 1 - fresh;
      for (size_t i = 0; i < g.size(); ++i) {
        const double share = fresh * g[i] * g[i];
        rows[i / p.columns] += share / static_cast<double>(p.columns);
        columns[i % p.columns] += share / static_cast<double>(p.rows);
      }
      for (double r : rows) total += r / static_cast<double>(p.rows);
      for (size_t i = 0; i < g.size(); ++i) {
        v[i] = rows[i / p.columns] * columns[i % p.columns] / total;
      }
    } else {
      std::vector<double>& second = p.State("v");
      for (size_t i = 0; i < g.size(); ++i) second[i] += fresh * (g[i] * g[i] - second[i]);
      v = second;
    }
    std::vector<double> u(g.size());
    for (size_t i = 0; i < g.size(); ++i) u[i] = g[i] / std::sqrt(v[i]);
    const double clipped = std::max(1.0, Norm(u) / std::sqrt(elements) / clip);
    for (size_t i = 0; i < g.size(); ++i) {
      p.value[i] = p.value[i] * (1 - lr * p.weight_decay) - size * u[i] / clipped;
    }
  };
}

// Newton-Schulz as written by Jordan et al., on a matrix of vectors.
using Matrix = std::vector<std::vector<double>>;

Matrix Times(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size(), 0.0));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Matrix Transposed(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

Matrix NewtonSchulz(Matrix x, int64_t iterations) {
  if (x.size() > x[0].size()) return Transposed(NewtonSchulz(Transposed(x), iterations));
  double squares = 0;
  for (const auto& row : x) {
    for (double v : row) squares += v * v;
  }
  for (auto& row : x) {
    for (double& v : row) v /= std::sqrt(squares) + 1e-7;
  }
  for (int64_t k = 0; k < iterations; ++k) {
    const Matrix a = Times(x, Transposed(x));
    Matrix b = Times(a, a);
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < a.size(); ++j) b[i][j] = -4.7750 * a[i][j] + 2.0315 * b[i][j];
    }
    const Matrix bx = Times(b, x);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x[0].size(); ++j) x[i][j] = 3.4445 * x[i][j] + bx[i][j];
    }
  }
  return x;
}

// `rate_factor`: of matrices, whose rate may differ.
ReferenceRule MuonRule(double momentum, bool nesterov, bool original, double rate_factor) {
  return [=](ReferenceParameter& p, const std::vector<double>& g, double lr, int64_t t) {
    if (!p.matrix || p.name[0] != 'h') return AdamRule(true)(p, g, lr, t);
    lr *= rate_factor;
    std::vector<double>& m = p.State("m");
    const int64_t parts = p.name == "h.0.attn.c_attn.weight" ? 3 : 1;
    const int64_t rows = p.rows / parts;
    const double scale = original ? std::sqrt(std::max(1.0, double(rows) / double(p.columns)))
                                  : 0.2 * std::sqrt(double(std::max(rows, p.columns)));
    for (double& v : p.value) v *= 1 - lr * p.weight_decay;
    for (int64_t part = 0; part < parts; ++part) {
      Matrix u(rows, std::vector<double>(p.columns));
      const auto at = [&](int64_t r, int64_t c) { return (part * rows + r) * p.columns + c; };
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < p.columns; ++c) {
          double& momentum_of = m[at(r, c)];
          momentum_of = momentum * momentum_of + (1 - momentum) * g[at(r, c)];
          u[r][c] = nesterov ? (1 - momentum) * g[at(r, c)] + momentum * momentum_of : momentum_of;
        }
      }
      u = NewtonSchulz(u, 5);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < p.columns; ++c) p.value[at(r, c)] -= lr * scale * u[r][c];
      }
    }
  };
}

void ScheduleFreeRule(ReferenceParameter& p, const std::vector<double>& g, double lr, int64_t t) {
  std::vector<double>& v = p.State("v");
  std::vector<double>& sum = p.State("sum", 1);
  if (t == 1) p.State("x") = p.State("z") = p.value;
  std::vector<double>&x = p.State("x"), &z = p.State("z");
  const double rate = lr * std::sqrt(1 - std::pow(0.95, t));
  sum[0] += rate * rate;
  const double c = rate * rate / sum[0];
  for (size_t i = 0; i < g.size(); ++i) {
    v[i] += 0.05 * (g[i] * g[i] - v[i]);
    z[i] -= rate * g[i] / (std::sqrt(v[i]) + 1e-6) + rate * p.weight_decay * p.value[i];
    x[i] = (1 - c) * x[i] + c * z[i];
    p.value[i] = 0.1 * z[i] + 0.9 * x[i];
  }
}

TEST(OptimizerTest, AHundredUpdatesEndWhereFloat64Ends) {
  OptimizerSpec nesterov = SpecOf("sgd");
  nesterov.nesterov = true;
  OptimizerSpec plain = SpecOf("sgd");
  plain.momentum = 0;
  OptimizerSpec muon = SpecOf("muon");
  muon.momentum = 0.95;
  muon.nesterov = true;
  OptimizerSpec original = SpecOf("muon");
  original.muon_scale = "original";
  original.muon_learning_rate = 0.03;
  OptimizerSpec adafactor = SpecOf("adafactor");
  adafactor.update_clip = 0.9;
  adafactor.decay_exponent = 0.7;
  const std::vector<std::pair<OptimizerSpec, ReferenceRule>> cases = {
      {adafactor, AdafactorRule(0.7, 0.9)},
      {muon, MuonRule(0.95, true, false, 1)},
      {original, MuonRule(0.9, false, true, 3)},
      {SpecOf("schedule_free_adamw"), ScheduleFreeRule},
      {SpecOf("sgd"), SgdRule(0.9, false)},
      {nesterov, SgdRule(0.9, true)},
      {plain, SgdRule(0.0, false)},
      {SpecOf("lars"), LarsRule(0.9, 0.02, 1e-6)},
      {SpecOf("adam"), AdamRule(false)},
      {SpecOf("adamw"), AdamRule(true)},
      {SpecOf("lamb"), LambRule},
      {SpecOf("lion"), LionRule},
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

    // Matrices in bf16, rounded stochastically: up or down at first, and a walk without drift
    // later.
    OptimizerRun half(spec, DType::kBF16);
    half.Update(1);
    half.UpdateReference(1, rule);
    for (size_t p = 0; p < half.reference.size(); ++p) {
      const std::vector<float> got = half.Values()[p];
      for (size_t i = 0; i < got.size(); ++i) {
        const double expected = half.reference[p].value[i];
        ASSERT_NEAR(got[i], expected, std::abs(expected) * 0x1p-7 + 1e-6);
      }
    }
    for (int64_t t = 2; t <= 100; ++t) {
      half.Update(t);
      half.UpdateReference(t, rule);
    }
    EXPECT_LT(half.Error(), 0.05);
    EXPECT_GT(half.Error(), 1e-4);
  }
}

TEST(OptimizerTest, ARestoredStateGoesOnBitForBit) {
  for (const char* name : {"sgd", "lars", "adam", "adamw", "lamb", "lion", "adafactor", "muon",
                           "schedule_free_adamw"}) {
    for (DType matrices : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(name);
      OptimizerRun original(SpecOf(name), matrices), copy(SpecOf(name), matrices);
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
        const bool rest_of_muon = name == std::string("muon") && from[i].name[0] == 'a';
        EXPECT_THAT(from[i].name,
                    ::testing::StartsWith(std::string(rest_of_muon ? "adamw" : name) + "/"));
        std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
      }
      for (int64_t t = 6; t <= 8; ++t) {
        original.Update(t);
        copy.Update(t);
      }
      EXPECT_EQ(copy.Values(), original.Values());
    }
  }
}

TEST(OptimizerTest, TheAverageOfScheduleFreeIsWhatItYields) {
  OptimizerRun run(SpecOf("schedule_free_adamw"));
  for (int64_t t = 1; t <= 20; ++t) {
    run.Update(t);
    run.UpdateReference(t, ScheduleFreeRule);
  }
  auto made = run.optimizer->Averages(run.context);
  ASSERT_TRUE(made.ok());
  const std::vector<AveragedParameter>& averages = *made;
  ASSERT_EQ(averages.size(), run.reference.size());
  for (size_t i = 0; i < averages.size(); ++i) {
    for (size_t k = 0; k < run.reference[i].value.size(); ++k) {
      ASSERT_NEAR(averages[i].average[k], run.reference[i].State("x")[k], 1e-5);
    }
  }
}

TEST(OptimizerTest, FactoredAndSignRulesKeepLessState) {
  const auto bytes = [](const char* name) {
    OptimizerRun run(SpecOf(name));
    int64_t sum = 0;
    for (const NamedTensor& tensor : run.optimizer->StateTensors()) sum += tensor.view.Bytes();
    return sum;
  };
  const int64_t matrices = 23 * 16 + 48 * 16 + 16 * 40, vectors = 48 + 16;
  EXPECT_EQ(bytes("adamw"), 8 * (matrices + vectors));
  EXPECT_EQ(bytes("lion"), 4 * (matrices + vectors));
  EXPECT_EQ(bytes("adafactor"), 4 * (23 + 16 + 48 + 16 + 16 + 40 + vectors));
  EXPECT_EQ(bytes("muon"), 4 * (48 * 16 + 16 * 40) + 8 * (23 * 16 + vectors));
  EXPECT_EQ(bytes("schedule_free_adamw"), 12 * (matrices + vectors) + 8);
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
  auto made = NewOptimizer(run.context, SpecOf("adamz"), &run.parameters, DType::kF32);
  EXPECT_EQ(made.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(made.status().message(), HasSubstr("adamz"));
}

}  // namespace
}  // namespace weft::engine
