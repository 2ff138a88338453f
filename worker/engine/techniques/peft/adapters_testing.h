#pragma once

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "common/spec/model_spec.h"
#include "worker/engine/techniques/peft/matrices_testing.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {

inline ModelSpec WithoutPeft(ModelSpec model) {
  model.peft = {};
  return model;
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

}  // namespace weft::engine
