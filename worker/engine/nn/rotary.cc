#include "worker/engine/nn/rotary.h"

#include <cmath>
#include <numbers>

#include "kernels/rope/rope.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// Wavelengths past original_context / low_frequency_factor are stretched, those short of
// original_context / high_frequency_factor are not.
double Llama3Frequency(double frequency, const RopeScalingSpec& scaling) {
  const double turns =
      static_cast<double>(scaling.original_context) * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_frequency_factor) return frequency / scaling.factor;
  if (turns > scaling.high_frequency_factor) return frequency;
  const double kept = (turns - scaling.low_frequency_factor) /
                      (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

std::vector<double> RotaryFrequencies(int64_t head_dim, double theta,
                                      const RopeScalingSpec& scaling) {
  std::vector<double> frequencies;
  for (int64_t j = 0; j < head_dim / 2; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(head_dim);
    double frequency = std::pow(theta, exponent);
    if (scaling.kind == "linear") frequency /= scaling.factor;
    if (scaling.kind == "llama3") frequency = Llama3Frequency(frequency, scaling);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

Status RotaryTable::Prepare(Context& context) {
  if (cosines_) return OkStatus();
  const auto half = static_cast<int64_t>(frequencies_.size());
  const Shape shape = {context_, half};
  WEFT_ASSIGN_OR_RETURN(sines_, Tensor::New(context, Component::kParameters, DType::kF32, shape));
  WEFT_ASSIGN_OR_RETURN(cosines_, Tensor::New(context, Component::kParameters, DType::kF32, shape));
  const auto fill = [&](const Tensor& table, double (*function)(double)) {
    return FillOnHost(context.stream, table, [&](const TensorView& host) {
      for (int64_t position = 0; position < context_; ++position) {
        for (int64_t j = 0; j < half; ++j) {
          const double angle = static_cast<double>(position) * frequencies_[j];
          host.As<float>()[position * half + j] = static_cast<float>(function(angle));
        }
      }
    });
  };
  WEFT_RETURN_IF_ERROR(fill(cosines_, std::cos));
  return fill(sines_, std::sin);
}

Status RotaryTable::Rotate(Context& context, const Tensor& x, const Tensor& positions,
                           bool inverse) const {
  return kernels::Rope(context.stream, {x, positions, cosines_, sines_, inverse});
}

}  // namespace weft::engine
