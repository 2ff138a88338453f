#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "common/dtype.h"
#include "common/spec/model_spec.h"
#include "worker/engine/testing/float64_matrices.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {

inline ModelSpec WithoutPeft(ModelSpec model) {
  model.peft = {};
  return model;
}

/// Rounds the matrices of a network to bf16, as those are that are frozen: products without bf16
/// instructions do not round what is stored in f32.
inline void RoundMatrices(TinyRun& plain) {
  const ParameterSet& parameters = plain.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].shape.rank < 2 || parameters[i].looked_up()) continue;
    const TensorView view = parameters.value(i);
    for (int64_t k = 0; k < view.shape.Elements(); ++k) {
      view.As<float>()[k] = ToFloat(ToBFloat16(view.As<float>()[k]));
    }
  }
  ASSERT_TRUE(plain.model->Pack(plain.context).ok());
}

inline Doubles Wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

/// Moves what is trained away from its start.
inline void Perturb(TinyRun& run, double by) {
  ParameterSet& parameters = run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].frozen) continue;
    const TensorView view = parameters.value(i);
    const std::vector<float> change =
        Normal(static_cast<size_t>(view.shape.Elements()), 50 + static_cast<uint64_t>(i), by);
    for (size_t k = 0; k < change.size(); ++k) view.As<float>()[k] += change[k];
  }
  ASSERT_TRUE(run.model->Pack(run.context).ok());
}

/// Moves each trained parameter along its gradient, which `run` has of `loss`, and back: the loss
/// that `loss_now` computes changes as the gradient says. Leaves out those whose slope is less than
/// losses in f32 resolve; returns how many are checked.
template <class LossNow>
int64_t CheckSlopes(TinyRun& run, double loss, const LossNow& loss_now) {
  ParameterSet& parameters = run.model->parameters();
  int64_t checked = 0;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].frozen) continue;
    const Doubles gradient = AsDoubles(parameters.gradient(i));
    double squares = 0;
    for (const double each : gradient) squares += each * each;
    const double rounding = 1e-6 * loss / (2 * squares);
    const double step = std::min(2e-2 / std::sqrt(squares), rounding / 0.01);
    const double noise = rounding / step;
    if (!(noise < 0.05)) continue;
    ++checked;
    const TensorView value = parameters.value(i);
    const auto moved = [&](double by) {
      for (size_t k = 0; k < gradient.size(); ++k) {
        value.As<float>()[k] += static_cast<float>(by * gradient[k]);
      }
      WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
      return loss_now();
    };
    const double up = moved(step), down = moved(-2 * step);
    moved(step);
    EXPECT_NEAR((up - down) / (2 * step) / squares, 1, 0.05 + noise) << parameters[i].name;
  }
  return checked;
}

}  // namespace weft::engine
