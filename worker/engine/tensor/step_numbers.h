#pragma once

#include <cstdint>

namespace weft::engine {

/// Numbers of a training step that its operations read where they run, so that one recording of
/// them serves every step (train/step_graphs.h).
struct StepNumbers {
  double targets = 1;
  double loss_scale = 1;
  double loss_limit = 0;
  int64_t update = 1;
  float gradient_scale = 1;
  float learning_rate = 0;
  uint32_t step = 0;
};

}  // namespace weft::engine
