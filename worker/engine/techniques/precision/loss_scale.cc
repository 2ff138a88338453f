#include "worker/engine/techniques/precision/loss_scale.h"

#include <algorithm>
#include <limits>

namespace weft::engine {

LossScale FirstLossScale(const LossScalingSpec& spec) {
  return {std::max(spec.initial, kMinLossScale), 0};
}

LossScale NextLossScale(const LossScalingSpec& spec, const LossScale& now, bool overflow) {
  if (overflow) return {std::max(now.scale * spec.backoff, kMinLossScale), 0};
  if (now.clean_steps + 1 < spec.growth_interval) return {now.scale, now.clean_steps + 1};
  const double grown = now.scale * spec.growth;
  return {grown <= std::numeric_limits<float>::max() ? grown : now.scale, 0};
}

}  // namespace weft::engine
