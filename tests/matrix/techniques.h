#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"

namespace weft::testing {

/// What a choice does to the numbers of a training.
enum class Effect : uint8_t {
  kSameBits,     ///< Nothing at all: where or when a number is made, not how.
  kKeepsOther,   ///< The same, but its own training where what is kept is in bits.
  kSameNumbers,  ///< The same sums in another order.
  kOwnTraining,  ///< Another training, which one rank can make, too.
};

/// One way to train, of those that exclude each other.
struct Choice {
  std::string name;
  Effect effect = Effect::kSameNumbers;
  /// Makes a plain job use it. Ways that take ranks multiply resources.ranks, which is 1.
  std::function<void(JobSpec&)> apply;
};

/// Choices that exclude each other; the first one is the plain way.
using Axis = std::vector<Choice>;

/// What jobs may ask for together; validation says what goes together. Each technique of the
/// registry has an axis: the process ends where one has none.
const std::vector<Axis>& Axes();

}  // namespace weft::testing
