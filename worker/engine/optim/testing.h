#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/rng.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/optim/parameter_rules.h"
#include "worker/engine/testing/parameter_values.h"

namespace weft::engine {

/// One parameter of a float64 reference.
struct ReferenceParameter {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;  ///< 1 for vectors.
  bool matrix = false;
  double learning_rate_scale = 1;
  double weight_decay = 0;
  std::vector<double> value;
  std::map<std::string, std::vector<double>> state;

  /// A state of this size, zero at first.
  std::vector<double>& State(const std::string& what, size_t size) {
    auto [it, fresh] = state.try_emplace(what);
    if (fresh) it->second.assign(size, 0.0);
    return it->second;
  }
  std::vector<double>& State(const std::string& what) { return State(what, value.size()); }
};

/// Moves a parameter by gradient g in update t (from 1).
using ReferenceRule =
    std::function<void(ReferenceParameter& p, const std::vector<double>& g, double lr, int64_t t)>;

/// Some parameters of a small network with an optimizer, and a float64 reference of both. The
/// gradients of a step are random numbers that depend on nothing but the step.
class OptimizerRun {
 public:
  explicit OptimizerRun(const OptimizerSpec& spec, DType matrices = DType::kF32) : spec_(spec) {
    kernels::cpu::SetThreads(1);  // tiny sizes, and other tests run at the same time
    context.allocator = &allocator;
    const auto add = [this](const char* name, const Shape& shape, ParameterRole role,
                            const Initializer& start, const ParameterOptions& options = {}) {
      parameters.SetStart(parameters.Register(name, shape, role, options), start);
    };
    add("wte.weight", {23, 16}, ParameterRole::kTokenEmbedding, {0, 0.5}, {.padded_rows = 64});
    parameters.StartUnit(0);
    const auto qkv = ParameterRole::kQueriesKeysValues;
    add("h.0.attn.c_attn.weight", {48, 16}, qkv, {0, 0.5});
    add("h.0.attn.c_attn.bias", {48}, qkv, {0.1, 0.5}, {.bias = true});
    add("h.0.mlp.c_proj.weight", {16, 40}, ParameterRole::kMlpDown, {0, 0.5});
    parameters.StartUnit();
    add("ln_f.weight", {16}, ParameterRole::kNorm, {1, 0});
    WEFT_CHECK(parameters.Allocate(context, true, matrices).ok(), "allocate");
    WEFT_CHECK(parameters.Initialize(1).ok(), "initialize");
    parameters.SetParts(1, {16, 16, 16});
    auto made = NewOptimizer(context, spec, &parameters, DType::kF32);
    WEFT_CHECK(made.ok(), made.status().message());
    optimizer = *std::move(made);
    auto rules = ResolveParameterRules(spec, parameters);
    WEFT_CHECK(rules.ok(), rules.status().message());
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Shape& shape = parameters[i].shape;
      const ParameterRule& rule = (*rules)[static_cast<size_t>(i)];
      const std::vector<float> value = ValuesOf(parameters.value(i));
      reference.push_back({parameters[i].name,
                           shape[0],
                           shape.rank > 1 ? shape[1] : 1,
                           shape.rank > 1,
                           rule.learning_rate_scale,
                           rule.weight_decay,
                           {value.begin(), value.end()},
                           {}});
    }
  }

  /// Rises and falls, so that rules that remember past rates show it.
  double LearningRate(int64_t t) const {
    return spec_.learning_rate * (1.0 + 0.5 * std::sin(0.2 * static_cast<double>(t)));
  }

  /// Update t of the optimizer, with gradients that are scaled and limited on the way.
  void Update(int64_t t) {
    FillGradients(t);
    context.step = t;  // of what is rounded
    Status status = optimizer->Update(context, {.learning_rate = LearningRate(t),
                                                .gradient_scale = kScale,
                                                .gradient_limit = Limit(),
                                                .update = t});
    WEFT_CHECK(status.ok(), status.message());
    optimizer->OnApplied();
  }

  /// The same of the reference; Update(t) came before.
  void UpdateReference(int64_t t, const ReferenceRule& rule) {
    for (size_t i = 0; i < reference.size(); ++i) {
      const float* from = parameters.gradient(static_cast<int64_t>(i)).As<float>();
      std::vector<double> g(from, from + reference[i].value.size());
      for (double& x : g) {
        x *= kScale;
        if (Limit() > 0) x = std::clamp(x, -Limit(), Limit());
      }
      rule(reference[i], g, LearningRate(t) * reference[i].learning_rate_scale, t);
    }
  }

  /// Largest |difference| / |reference| over the parameters, as vectors.
  double Error() const {
    double worst = 0;
    for (size_t i = 0; i < reference.size(); ++i) {
      const std::vector<float> got = ValuesOf(parameters.value(static_cast<int64_t>(i)));
      double difference = 0, norm = 0;
      for (size_t k = 0; k < reference[i].value.size(); ++k) {
        difference += std::pow(got[k] - reference[i].value[k], 2);
        norm += std::pow(reference[i].value[k], 2);
      }
      worst = std::max(worst, std::sqrt(difference / norm));
    }
    return worst;
  }

  std::vector<std::vector<float>> Values() const { return ValuesOf(parameters); }

  static constexpr double kScale = 0.5;
  /// The norm to which a gradient is clipped; LARS has none.
  double Limit() const { return spec_.name == "lars" ? 0.0 : 0.8; }

  Allocator allocator;
  Context context;
  ParameterSet parameters;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<ReferenceParameter> reference;

 private:
  void FillGradients(int64_t t) {
    for (int64_t i = 0; i < parameters.size(); ++i) {
      PhiloxStream random(
          {.seed = 5, .step = static_cast<uint32_t>(t), .site = static_cast<uint32_t>(i)});
      const TensorView view = parameters.gradient(i);
      for (int64_t k = 0; k < view.shape.Elements(); ++k) {
        // With a mean, so that momentum has something to gather.
        view.As<float>()[k] = static_cast<float>(random.Normal() + (k % 3 == 0 ? 0.5 : -0.1));
      }
    }
  }

  OptimizerSpec spec_;
};

}  // namespace weft::engine
