#pragma once

#include <cstdint>
#include <span>

#include "kernels/stream.h"

namespace weft::kernels {

/// One parameter tensor of a multi-tensor update; all f32 with `count` elements.
struct AdamWTensor {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  int64_t count = 0;
  float weight_decay = 0;
};

/// AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) over many tensors in one parallel pass:
///   g = gradient_scale * gradient
///   p -= lr * weight_decay * p
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + epsilon)
struct AdamWArgs {
  std::span<const AdamWTensor> tensors = {};
  float learning_rate = 0;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  int64_t step = 1;             ///< 1 for the first update
  float gradient_scale = 1.0f;  ///< clipping factor and averaging, applied on the fly
};

WEFT_DEVICE_OP(AdamW, AdamWArgs)

}  // namespace weft::kernels
