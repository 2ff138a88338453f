#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// For tests: a small training state whose numbers depend on the step.
class TestState {
 public:
  explicit TestState(int64_t step = 0) : weights_(12), moments_(5) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      weights_[i] = static_cast<float>(step) + 0.25f * static_cast<float>(i);
    }
    for (size_t i = 0; i < moments_.size(); ++i) moments_[i] = -static_cast<float>(step) - 1;
  }

  std::vector<NamedTensor> Tensors() {
    return {{"weights", TensorView(weights_.data(), DType::kF32, Shape{3, 4})},
            {"adamw/weights", TensorView(moments_.data(), DType::kF32, Shape{5})}};
  }
  bool operator==(const TestState& other) const = default;

 private:
  std::vector<float> weights_;
  std::vector<float> moments_;
};

/// The manifest of that state.
inline CheckpointManifest TestManifest(int64_t step) {
  CheckpointManifest manifest;
  manifest.job_id = "j-1";
  manifest.step = step;
  manifest.tokens = step * 4096;
  manifest.data_fingerprint = "0123";
  manifest.job.name = "test";
  manifest.job.data.train = {"text.txt"};
  manifest.job.optimizer.learning_rate = 0.1 + 0.2;  // needs 17 digits
  return manifest;
}

}  // namespace weft::engine
