#pragma once

#include <cstdint>

#include "common/spec/train_spec.h"

namespace weft::engine {

/// The smallest scale: with it gradients are what they are without one.
inline constexpr double kMinLossScale = 1.0;

/// Dynamic loss scale (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2): part of the
/// training state. The gradient is computed of scale * loss, so that small elements do not vanish
/// in half precision.
struct LossScale {
  double scale = kMinLossScale;
  int64_t clean_steps = 0;  ///< Since the scale last changed.

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("scale", "Factor on the loss.").Range(kMinLossScale, 1e39), self.scale);
    visit(Field("clean_steps", "Steps since it last changed.").Unit("steps").Range(0, 1e12),
          self.clean_steps);
  }

  bool operator==(const LossScale&) const = default;
};

/// The scale of the first step.
LossScale FirstLossScale(const LossScalingSpec& spec);

/// The scale after a step whose gradient overflowed or did not: times `backoff`, not below
/// kMinLossScale; or, after growth_interval clean steps, times `growth`, while that is a finite
/// f32.
LossScale NextLossScale(const LossScalingSpec& spec, const LossScale& now, bool overflow);

}  // namespace weft::engine
