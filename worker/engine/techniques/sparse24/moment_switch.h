#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Says when the second moments of Adam have settled, so that masks may be learned with them as
/// they are (STEP; Lu et al. 2023, arXiv 2302.01172): as AutoSwitch does, once their change in a
/// step is below the epsilon of Adam, in the mean over a window of 1 / (1 - beta2) steps, and not
/// before kFirstSwitchShare or after kLastSwitchShare of the steps. The change is that of the sum
/// of all second moments, by weight, which the norm of the gradients gives.
class MomentSwitch {
 public:
  /// After `share` of the steps, or with 0 by itself.
  explicit MomentSwitch(double share) : share_(share) {}

  Status OnTraining(const TrainingParts& parts);

  /// Whether `step` and those after it have masks.
  bool Switched(int64_t step) const { return step >= static_cast<int64_t>(state_[kSwitchStep]); }

  Status OnStepEnd(const FinishedStep& step);

  std::vector<NamedTensor> StateTensors();

 private:
  enum : uint8_t { kSwitchStep, kMoment, kChange, kCount, kNumbers };

  double share_;
  TrainingParts parts_;
  double weights_ = 0;  ///< Of all ranks that have other ones.
  /// The first step with masks; the sum of the second moments; in this window the sum of their
  /// changes, and the steps. In checkpoints.
  std::array<float, kNumbers> state_ = {};
};

}  // namespace weft::engine
