#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/optimizer/optimizer.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// One parameter tensor [rows, columns] of an Adafactor update; a vector is one row. All f32 but
/// for the parameter, which may be bf16: it is then updated in f32 and rounded stochastically
/// (kernels/stochastic_round), row r as the elements from r * (columns rounded up to a multiple of
/// 4) on of the stream of AdafactorArgs::seed, rounding_step and the tensor's `rounding_site`.
struct AdafactorTensor {
  float* parameter = nullptr;          ///< This one or ...
  BFloat16* bf16_parameter = nullptr;  ///< ... this one.
  const float* gradient = nullptr;
  float* row_moment = nullptr;     ///< [rows]; not needed for one row.
  float* column_moment = nullptr;  ///< [columns]
  int64_t rows = 1;
  int64_t columns = 0;
  float learning_rate_scale = 1;
  float weight_decay = 0;
  uint32_t rounding_site = 0;
};

/// Adafactor (Shazeer and Stern 2018, arXiv 1804.04235) with relative step sizes and no first
/// moment, as PyTorch has it, for gradients g = clamp(gradient_scale * gradient, +-gradient_limit):
///   b = step^-decay_exponent;  rate = lr * learning_rate_scale
///   size = max(1e-3, rms(p)) * min(rate, 1 / sqrt(step));  p -= rate weight_decay p
///   R += b (row means of g^2 - R);  C += b (column means of g^2 - C);  V = R C / mean(R)
///   u = g / sqrt(V);  p -= size u / max(1, rms(u) / clip)
/// The gradient is read three times, the parameter twice. The same bits for any number of threads.
struct AdafactorArgs {
  std::span<const AdafactorTensor> tensors = {};
  float learning_rate = 0;
  float gradient_scale = 1.0f;
  float gradient_limit = std::numeric_limits<float>::infinity();
  float decay_exponent = 0.8f;
  float clip = 1.0f;
  int64_t step = 1;            ///< 1 for the first update.
  uint64_t seed = 0;           ///< Of the rounding of bf16 parameters.
  uint32_t rounding_step = 0;  ///< Likewise.
  UpdateGate gate = {};
};

WEFT_DEVICE_OP(Adafactor, AdafactorArgs)

}  // namespace weft::kernels
